"""Jobs on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.emu.build import build
from tests.emu.ranks import Ranks

StartRanks = Callable[..., Ranks]


@pytest.fixture(scope="session")
def library() -> Path:
    """The device's library: its first build takes half a minute of a CPU."""
    return build()


@pytest.fixture
def start_ranks(library: Path, tmp_path: Path) -> Iterator[StartRanks]:
    """Start the ranks of a job, by train.py's arguments; they end with the test."""
    started: list[Ranks] = []

    def start(*arguments: str, ranks: int = 2, env: dict[str, str] | None = None) -> Ranks:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Ranks(folder, *arguments, ranks=ranks, env=env))
        return started[-1]

    yield start
    for each in started:
        each.close()
