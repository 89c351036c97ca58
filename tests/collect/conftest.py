"""Real processes to look at, each ended with its test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.board import MAGIC, Board, Field, board_name, create_board
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.procfs import read_stat, read_wchan
from guardrun.supervisor.collect.ranks import sampler
from guardrun.supervisor.engine.model.events import Rank
from tests.support.processes import descendants, kill, read_process, reap
from tests.support.waiting import wait_until

StartScript = Callable[..., "Script"]


class Script:
    """A Python process that ran until it said it was ready."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self.path = path
        self.pid = process.pid
        stat = read_stat(process.pid)
        self.start = stat.start if stat is not None else 0

    def line_of(self, text: str) -> int:
        """The number of the first line of the script that holds text."""
        lines = self.path.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if text in line)

    def rank(self, global_rank: int = 0) -> Rank:
        return Rank(global_rank=global_rank, local_rank=global_rank, pid=self.pid, node="n1")


class StandingClock:
    """A sampler's seconds: they pass when a test says so."""

    monotonic_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(sampler, "time", clock)
    return clock


def is_asleep(pid: int) -> bool:
    """Say whether a main thread is in sleep(), by the kernel function it waits in where that may be read.

    Python 3.10's sleep() is a select().
    """
    stat = read_stat(pid)
    if stat is None or stat.state != "S":
        return False
    wchan = read_wchan(pid)
    return not wchan or "nanosleep" in wchan or "select" in wchan or "poll" in wchan


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[StartScript]:
    """Start a script; when this returns it has printed `ready` as its first line, and is asleep if that is its end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        text: str, *arguments: str, env: dict[str, str] | None = None, name: str = "", ends_asleep: bool = True
    ) -> Script:
        path = tmp_path / (name or f"script{len(started)}.py")
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        if ends_asleep:
            wait_until(lambda: is_asleep(process.pid), 10, "the script's sleep")
        return Script(process, path)

    yield start
    for process in started:
        below = descendants(process.pid)
        for each in below:
            kill(each)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        reap(each for each in below if read_process(each.pid) is not None)


@pytest.fixture
def clock() -> EngineClock:
    return EngineClock(100.0, time.monotonic())


@pytest.fixture
def make_board(tmp_path: Path) -> Iterator[Callable[..., Board]]:
    """A board as the hooks of a rank would have it."""
    boards: list[Board] = []

    def make(attempt: int, global_rank: int, pid: int, **fields: int) -> Board:
        path = str(tmp_path / board_name(attempt, global_rank))
        create_board(path)
        board = Board(path)
        boards.append(board)
        board.words[Field.MAGIC] = MAGIC
        board.words[Field.PID] = pid
        for name, value in fields.items():
            board.words[Field[name]] = value
        return board

    yield make
    for board in boards:
        board.close()
