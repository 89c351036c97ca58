"""What a node's supervisor keeps for comparisons: nothing of it is waited for, and nothing of it is lost at the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import EnvironmentReported
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.node import run_records
from guardrun.supervisor.node.run_records import RunRecords
from guardrun.supervisor.rundir.environment import read_environments
from guardrun.supervisor.rundir.step_values import StepValues, read_steps
from tests.report.samples import run_file
from tests.support.waiting import wait_until


class Bench:
    """Records of a run, with the writer that it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = BackgroundWriter()
        self.records = RunRecords(folder, run_file(cwd=str(folder)), self.writer)

    def close(self) -> None:
        self.records.close()
        self.writer.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        bench.close()


def told(script: Path, rank: int = 0, attempt: int = 0) -> EnvironmentReported:
    return EnvironmentReported(
        attempt=attempt,
        global_rank=rank,
        pid=1,
        script=str(script),
        modules=[],
        more_modules=0,
        path=[],
        runtime={},
        flags={},
        seed=attempt,
        variables={},
        device="",
    )


def test_steps_are_written_now_and_then_and_at_the_end(bench: Bench) -> None:
    bench.records.note_steps(0, [StepValues(1, 1.0, None)])
    bench.records.note_steps(0, [StepValues(2, 2.0, None)])
    assert list(bench.folder.iterdir()) == [], "not yet"
    bench.records.note_steps(1, [StepValues(1, 3.0, None)])
    bench.close()
    assert [(attempt, one.step, one.loss) for attempt, one in read_steps(bench.folder)] == [
        (0, 1, 1.0),
        (0, 2, 2.0),
        (1, 1, 3.0),
    ]


def test_what_rank_0_computes_with_is_read_and_kept(bench: Bench) -> None:
    (bench.folder / "train.py").write_text("x = 1\n")
    bench.records.note_environment(told(bench.folder / "train.py", rank=1))
    bench.records.note_environment(told(bench.folder / "train.py"))
    bench.close()
    [record], why = read_environments(bench.folder)
    assert (why, record.node, list(record.files)) == ("", "node-a", ["train.py"])


def test_a_file_system_that_does_not_answer_holds_nobody_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told meanwhile is dropped; at the end it is waited for no longer than a moment."""
    answers, calls = threading.Event(), []

    def stands(*arguments: object, **more: object) -> None:
        calls.append(arguments)
        answers.wait(60)
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(run_records, "read_environment", stands)
    bench.records.note_environment(told(bench.folder / "train.py"))
    wait_until(lambda: bool(calls), 30, "it is being read")
    bench.records.note_environment(told(bench.folder / "train.py", attempt=1))
    bench.close()
    assert len(calls) == 1 and read_environments(bench.folder) == ([], "")
    answers.set()
    wait_until(lambda: all("environment" not in one.name for one in threading.enumerate()), 30, "its thread's end")


def test_the_last_room_on_a_disk_is_left_to_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "MIN_FREE_BYTES", 1 << 80)
    bench.records.note_steps(0, [StepValues(1, 1.0, None)])
    bench.records.note_environment(told(bench.folder / "train.py"))
    bench.close()
    assert list(bench.folder.iterdir()) == []


def test_a_disk_that_does_not_answer_keeps_few_values_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the writer's queue to the journal: what it can't write in time is lost, not kept."""
    monkeypatch.setattr(run_records, "MAX_WAITING", 1)
    stands, answers = threading.Event(), threading.Event()
    bench.writer.put(lambda: (stands.set(), answers.wait(60)))
    assert stands.wait(30)
    for step in range(100):
        bench.records.note_steps(0, [StepValues(step, 1.0, None)])
    waiting = bench.writer._queue.qsize()
    answers.set()
    assert waiting == run_records.MAX_UNWRITTEN
    wait_until(bench.writer._queue.empty, 30, "all is written")
    bench.records.note_steps(0, [StepValues(100, 1.0, None)])
    bench.close()
    assert [one.step for _, one in read_steps(bench.folder)] == [*range(run_records.MAX_UNWRITTEN), 99, 100]
