"""Writing without ever hanging: in order and waited for while the disk answers, queued once it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal import Journal, read_lines
from tests.support.waiting import wait_until


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    writer = BackgroundWriter(patience_s=30.0, most=5)
    yield writer
    assert writer.close()


def stand(writer: BackgroundWriter) -> threading.Event:
    """Have a disk not answer, which is waited for in vain, until the event that this returns."""
    begun, answer = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        answer.wait()

    assert not writer.do(work)
    assert begun.wait(60), "it no longer waits in the queue"
    return answer


def test_work_is_done_in_order_and_waited_for(writer: BackgroundWriter) -> None:
    done: list[int] = []
    writer.put(lambda: done.append(1))
    assert writer.do(lambda: done.append(2))
    assert done == [1, 2]
    assert not writer.is_stuck


def test_what_raises_costs_nothing_else(writer: BackgroundWriter) -> None:
    assert writer.do(lambda: 1 // 0)
    assert writer.do(lambda: None)
    assert writer.dropped == 1


def test_a_disk_that_does_not_answer_is_waited_for_once() -> None:
    writer, done = BackgroundWriter(patience_s=0.2, most=5), list[int]()
    answer = stand(writer)
    began = time.monotonic()
    for number in range(100):
        assert not writer.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert time.monotonic() - began < 10.0, "nobody waits for it again, a hundred times 0.2 s"
    assert writer.dropped == 95, "what waits is bounded"
    wait_until(lambda: writer.is_stuck, 5.0, "that to be known")
    answer.set()
    wait_until(lambda: writer.do(lambda: done.append(-1)), 5.0, "the disk to be trusted again", every_s=0.1)
    assert not writer.is_stuck
    assert done[:5] == [0, 1, 2, 3, 4] and set(done[5:]) == {-1}
    writer._patience_s = 30.0
    assert writer.close()


def test_a_disk_that_is_slow_costs_a_share_of_the_time_and_no_more() -> None:
    """Twenty pieces in a row that take a tenth of a second each: a loop would be held up for two."""
    # A quarter of it, in which the disk's thread must be seen to move, is long for a busy machine, too.
    writer, done = BackgroundWriter(patience_s=0.8), list[int]()

    def write(number: int) -> None:
        for _ in range(10):
            time.sleep(0.01)
        done.append(number)

    began = time.monotonic()
    for number in range(20):
        writer.do(lambda number=number: write(number))  # type: ignore[misc]
    took_s = time.monotonic() - began
    assert took_s > 0.2 and (took_s < 1.5 or len(done) < 20)
    writer.put(lambda: [time.sleep(0.01) for _ in range(100)])
    while len(done) < 20:
        # The thread may be kept from its CPU for so long that it seems to stand.
        wait_until(lambda: not writer.is_stuck, 60, "it answers")
        time.sleep(0.01)
    assert writer.close(), "an end waits for what is slow"
    assert done == list(range(20))


def test_a_journal_on_a_dead_file_system_holds_nobody_and_loses_nothing(tmp_path: Path) -> None:
    writer = BackgroundWriter(patience_s=0.2, most=100)
    journal, answer = Journal(tmp_path, writer=writer), stand(writer)
    began = time.monotonic()
    for number in range(50):
        journal.append(ev.Ticked(), [], float(number))
    assert time.monotonic() - began < 9.0, "fifty times 0.2 s"
    wait_until(lambda: "does not answer" in journal.trouble, 5.0, "that to be said")
    answer.set()
    wait_until(lambda: not writer.is_stuck, 5.0, "the disk to be back")
    writer._patience_s = 30.0
    journal.close()
    assert writer.close(), "all that was queued is written"
    assert [line.n for line in read_lines(tmp_path) if line] == [*range(50)]
    assert journal.trouble == ""


def test_a_journal_is_written_when_append_returns(writer: BackgroundWriter, tmp_path: Path) -> None:
    journal = Journal(tmp_path, writer=writer)
    journal.append(ev.Ticked(), [], 1.0)
    assert [line.t for line in read_lines(tmp_path) if line] == [1.0]
    journal.close()


def test_an_end_does_not_wait_for_a_dead_disk() -> None:
    answer = threading.Event()
    writer = BackgroundWriter(patience_s=0.1)
    assert not writer.do(answer.wait)
    began = time.monotonic()
    assert not writer.close()
    assert time.monotonic() - began < 30.0
    answer.set()
    writer._thread.join(60)
