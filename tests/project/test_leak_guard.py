"""The leak guard itself: what it finds, what it lets pass."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.leaks import child_handler_kept, find_leaks, take_snapshot
from tests.support.processes import is_alive, kill_marked, marked
from tests.support.waiting import wait_until

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
ORPHAN = f"import subprocess; subprocess.Popen({SLEEPER!r}, start_new_session=True)"


def test_nothing_is_found_where_nothing_is_left() -> None:
    before = take_snapshot()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    with socket.socket():
        pass
    assert find_leaks(before) == []


def test_a_process_is_found_and_ended() -> None:
    before = take_snapshot()
    child = subprocess.Popen(SLEEPER)
    assert [leak.kind for leak in find_leaks(before, settle_s=0.1)] == ["process"]
    assert not is_alive(child.pid)
    child.wait()


def test_an_orphaned_grandchild_is_found_and_ended() -> None:
    before = take_snapshot()
    subprocess.run([sys.executable, "-c", ORPHAN], check=True)
    leaks = find_leaks(before, settle_s=0.1)
    assert [leak.kind for leak in leaks] == ["process"]
    assert leaks[0].process is not None
    assert not is_alive(leaks[0].process.pid)


def test_a_thread_is_found() -> None:
    before = take_snapshot()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="forgotten")
    thread.start()
    try:
        assert [leak.text for leak in find_leaks(before, settle_s=0.1)] == ["thread 'forgotten'"]
    finally:
        done.set()
        thread.join()


def test_a_descriptor_is_found_even_where_its_number_was_open_before(tmp_path: Path) -> None:
    first = os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR)
    before = take_snapshot()
    os.close(first)
    second = os.open(tmp_path / "b", os.O_CREAT | os.O_RDWR)
    try:
        assert second == first
        leaks = find_leaks(before, settle_s=0.1)
        assert [leak.kind for leak in leaks] == ["fd"]
        assert leaks[0].text.endswith("/b")
    finally:
        os.close(second)


def test_what_is_just_ending_is_waited_for() -> None:
    before = take_snapshot()
    thread = threading.Timer(0.3, lambda: None)
    thread.start()
    assert find_leaks(before, settle_s=5.0) == []


@pytest.mark.leaks("fd")  # under test here
def test_an_allowed_kind_passes() -> None:
    before = take_snapshot()
    reader, writer = os.pipe()
    assert find_leaks(before, frozenset({"fd"}), settle_s=0.1) == []
    os.close(reader)
    os.close(writer)


def test_marked_processes_are_found_in_new_sessions_and_ended() -> None:
    subprocess.run([sys.executable, "-c", ORPHAN], check=True, env={**os.environ, "TEST_RUN_MARK": "leak-guard"})
    wait_until(lambda: marked("TEST_RUN_MARK", "leak-guard"), 5, "the orphan")
    ended = kill_marked("TEST_RUN_MARK", "leak-guard")
    assert len({one.pid for one in ended}) == 1
    assert marked("TEST_RUN_MARK", "leak-guard") == []


def test_a_handler_for_children_is_put_back() -> None:
    from torch.utils.data import DataLoader  # the others here do without

    before = signal.getsignal(signal.SIGCHLD)
    with child_handler_kept():
        loader = DataLoader(range(2), num_workers=1)
        assert [int(one) for one in loader] == [0, 1] and signal.getsignal(signal.SIGCHLD) is not before
    assert signal.getsignal(signal.SIGCHLD) is before
    with child_handler_kept():
        assert [int(one) for one in loader] == [0, 1] and signal.getsignal(signal.SIGCHLD) is not before
