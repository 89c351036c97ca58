"""Who waits for whom where tests run side by side, and what is begun first."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import spread
from tests.support.turns import computes, seat
from tests.support.waiting import wait_until


class Guest:
    """Takes a seat in a thread, and leaves when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.is_in = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(folder,))
        self._thread.start()

    def _stay(self, folder: Path) -> None:
        with seat(folder, seats=2):
            self.is_in.set()
            self._leave.wait(20)
        self.is_in.clear()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(60)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def enter(room: ExitStack, folder: Path) -> Guest:
    guest = Guest(folder)
    room.callback(guest.leave)
    return guest


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_those_who_compute_wait_for_a_seat(room: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "turns"
    first, second = (enter(room, folder) for _ in range(2))
    assert first.is_in.wait(5) and second.is_in.wait(5)
    third = enter(room, folder)
    wait_until(lambda: is_locked(folder / "queue"), 5, "it to queue")
    assert not third.is_in.is_set()
    second.leave()
    assert third.is_in.wait(5)
    assert first.is_in.is_set()


def test_stories_of_processes_compute_little() -> None:
    assert computes("tests/sim/test_fleet.py::test_a") and not computes("tests/runs/hangs/test_hangs.py::test_a")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = {
        "tests/runs/signals/test_signals.py::test_long": spread.Took(30.0, 3.0),
        "tests/runs/hangs/test_hangs.py::test_shared": spread.Took(20.0, 15.0),
        "tests/slurm/test_head.py::test_b": spread.Took(50.0, 5.0),
        "tests/slurm/test_job.py::test_c": spread.Took(40.0, 4.0),
    }
    monkeypatch.setattr(spread, "read_durations", lambda: durations)
    spread.units_of_slurm.cache_clear()


def test_what_takes_long_is_a_unit_of_its_own_unless_it_shares_something(known: None) -> None:
    long, short, shared = (
        "tests/runs/signals/test_signals.py::test_long",
        "tests/runs/signals/test_signals.py::test_short",
        "tests/runs/hangs/test_hangs.py::test_shared",
    )
    assert [spread.unit_of(test) for test in (long, short, shared)] == [
        long,
        "tests/runs/signals/test_signals.py",
        "tests/runs/hangs/test_hangs.py",
    ]


def test_as_many_slurms_as_are_wanted_share_the_work(known: None) -> None:
    units = spread.units_of_slurm()
    spread.units_of_slurm.cache_clear()
    assert set(units.values()) == {f"slurm {number + 1}" for number in range(spread.SLURMS)}
    assert units["tests/slurm/test_head.py"] != units["tests/slurm/test_job.py"]
    assert spread.unit_of("tests/slurm/test_head.py::test_b") == units["tests/slurm/test_head.py"]


def test_the_longest_units_come_first(known: None) -> None:
    tests = [
        "tests/engine/observation/test_rank_activity.py::test_a",
        "tests/runs/hangs/test_hangs.py::test_shared",
        "tests/runs/signals/test_signals.py::test_long",
        "tests/runs/hangs/test_hangs.py::test_other",
    ]
    assert spread.order(tests) == [tests[2], tests[1], tests[3], tests[0]]


def test_what_waits_is_told_from_what_computes_and_from_what_is_not_known(known: None) -> None:
    assert spread.waits(["tests/runs/signals/test_signals.py::test_long"])
    assert not spread.waits(
        ["tests/runs/hangs/test_hangs.py::test_shared", "tests/runs/hangs/test_hangs.py::test_other"]
    )
    assert not spread.waits(["tests/engine/observation/test_rank_activity.py::test_a"])
