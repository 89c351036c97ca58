"""Who waits for whom where tests run side by side."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.turns import Turns, turn
from tests.support.waiting import wait_until


class Guest:
    """Takes its turn in a thread, and leaves when it is told to."""

    def __init__(self, folder: Path, is_alone: bool, is_waiting: bool) -> None:
        self.is_in = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(folder, is_alone, is_waiting))
        self._thread.start()

    def _stay(self, folder: Path, is_alone: bool, is_waiting: bool) -> None:
        with turn(folder, is_alone=is_alone, is_waiting=is_waiting, seats=2):
            self.is_in.set()
            self._leave.wait(20)
        self.is_in.clear()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(20)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def enter(room: ExitStack, folder: Path, *, is_alone: bool = False, is_waiting: bool = False) -> Guest:
    guest = Guest(folder, is_alone, is_waiting)
    room.callback(guest.leave)
    return guest


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_one_who_wants_to_be_alone_waits_for_those_inside_and_those_who_come_wait_for_it(
    room: ExitStack, tmp_path: Path
) -> None:
    folder = tmp_path / "turns"
    first, second = (enter(room, folder) for _ in range(2))
    assert first.is_in.wait(5) and second.is_in.wait(5), "several at once"
    alone = enter(room, folder, is_alone=True)
    wait_until(lambda: is_locked(folder / "gate"), 5, "it to stand at the gate")
    first.leave()
    assert not alone.is_in.wait(0.1)
    later = enter(room, folder)
    assert not later.is_in.wait(0.1), "it would keep the other waiting"
    second.leave()
    assert alone.is_in.wait(5) and not later.is_in.is_set()
    alone.leave()
    assert later.is_in.wait(5)
    later.leave()
    wait_until(lambda: not later.is_in.is_set(), 5, "an empty room")


def test_those_who_compute_need_a_seat_and_those_who_wait_for_other_things_none(
    room: ExitStack, tmp_path: Path
) -> None:
    folder = tmp_path / "turns"
    first, second = (enter(room, folder) for _ in range(2))
    assert first.is_in.wait(5) and second.is_in.wait(5)
    third = enter(room, folder)
    wait_until(lambda: is_locked(folder / "queue"), 5, "it to queue")
    idle = [enter(room, folder, is_waiting=True) for _ in range(3)]
    assert all(one.is_in.wait(5) for one in idle)
    assert not third.is_in.is_set()
    second.leave()
    assert third.is_in.wait(5)
    assert first.is_in.is_set()


def test_tests_that_want_to_be_alone_are_so_together(room: ExitStack, tmp_path: Path) -> None:
    folder, own = tmp_path / "turns", Turns()
    own.begin(folder, is_alone=True, is_waiting=False)
    other = enter(room, folder)
    own.end(is_next_alone=True)
    own.begin(folder, is_alone=True, is_waiting=False)
    assert not other.is_in.wait(0.1)
    own.end(is_next_alone=False)
    assert other.is_in.wait(5)
    own.begin(folder, is_alone=False, is_waiting=False)
    own.end(is_next_alone=True)
    other.leave()
    own.begin(folder, is_alone=True, is_waiting=False)
    own.end(is_next_alone=False)
