from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.torchrun.beside import Beside


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    """guardrun and torchrun, side by side."""
    pair = Beside(tmp_path)
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture(name="free_ports")
def two_free_ports() -> list[int]:
    """Two ports that nobody listens on."""
    return free_ports(2)


@pytest.fixture(autouse=True)
def hangups_are_heard() -> Iterator[None]:
    """Under nohup guardrun leaves SIGHUP ignored for its ranks, and torchrun doesn't: compare them without it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
