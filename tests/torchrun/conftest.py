from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchrun.beside import Beside


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    """guardrun and torchrun, side by side."""
    pair = Beside(tmp_path)
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture
def free_ports() -> list[int]:
    """Two ports that nobody listened on a moment ago."""
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in (first, second)]
