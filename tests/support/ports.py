"""Ports for servers that a test's processes open later."""

from __future__ import annotations

import os
import random
import socket

_RANDOM = random.SystemRandom()
"""Not the one that pytest-randomly seeds alike before each test: two tests at a time would find the same ports."""
_BELOW_EPHEMERAL = (*range(15000, 20000), *range(30000, 32000))
"""The kernel gives none of these to clients: a port that is free stays so unless somebody asks for it by number, and
nobody does: those between are where jobs meet (launcher/run/job_nodes.py, meeting_port)."""


def _own_ports() -> tuple[int, ...]:
    """Those of this worker of pytest-xdist: what another one has found free may not be taken yet."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return _BELOW_EPHEMERAL[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens. Raises OSError where there are not enough."""
    found: list[int] = []
    own = _own_ports()
    for port in _RANDOM.sample(own, min(200, len(own))):
        if len(found) == count:
            return found
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    raise OSError("no free ports")
