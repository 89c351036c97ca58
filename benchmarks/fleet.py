"""A coordinator on one core and the nodes that report to it, as the two scripts of the bench speak of them.

scripts/coordinate.py, the coordinator: writes a Door, then, at the end, what it Measured.
scripts/report_nodes.py, many deputies in one process: reads the Door, reports, writes what it Sent.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model import events as ev

RANKS_A_NODE = 8


class Door(msgspec.Struct, frozen=True):
    """How to get in; goes through a pipe."""

    port: int
    server_key: str
    public: str
    secret: str


class Measured(msgspec.Struct, frozen=True):
    """What the coordinator saw, from the first report to the last."""

    reports: int
    seconds: float
    cpu_s: float
    """Of the whole process, ZeroMQ's thread included."""
    early_ms: list[float]
    """Latencies of the reports of the first third: median, 99th percentile, largest."""
    late_ms: list[float]
    """Of the last third: where a queue grows, these do."""
    joined_s: float
    """From the first Join to the last."""
    malformed: int


class Sent(msgspec.Struct, frozen=True):
    """What one process of deputies did."""

    reports: int
    seconds: float
    behind_s: float
    """The most that it was behind its own schedule."""


def report(node: int, ranks: int, sent_s: float) -> ev.NodeReport:
    """A node's report in which so many of its ranks have advanced; its `heart_s` is when it was sent."""
    step = int(sent_s)
    changed = [
        ev.RankReport(
            global_rank=node * RANKS_A_NODE + local, progress=3 * step, progress_s=sent_s, step=step, heart_s=sent_s
        )
        for local in range(ranks)
    ]
    return ev.NodeReport(node=f"node-{node}", attempt=0, ranks=changed)
