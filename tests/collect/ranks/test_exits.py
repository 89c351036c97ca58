from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.node_readings import read_room
from guardrun.supervisor.collect.host.oom_kills import OomWatch
from guardrun.supervisor.collect.ranks.exits import raised_name, read_exits, read_tail
from guardrun.supervisor.engine.model.events import Rank
from tests.collect.ranks.raised import RAISED

RANKS = [Rank(global_rank=number, local_rank=number, pid=100 + number, node="n1") for number in range(4)]


@pytest.fixture(autouse=True)
def long_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine whoever asks the file systems needs longer to begin."""
    monkeypatch.setattr("guardrun.supervisor.collect.ranks.exits.read_room", partial(read_room, timeout_s=60.0))


@pytest.fixture
def oom() -> Iterator[OomWatch]:
    watch = OomWatch()
    watch.attempt_started([os.getpid()])
    yield watch
    watch.close()


def test_every_rank_tells_by_the_best_that_it_left(tmp_path: Path, clock: EngineClock, oom: OomWatch) -> None:
    error_files, stderr_files = {}, {}
    for number in range(4):
        error_files[number] = str(tmp_path / f"error-{number}.json")
        stderr_files[number] = str(tmp_path / f"stderr-{number}.log")
    for number in (0, 1):
        Path(error_files[number]).write_text(json.dumps({"message": "RuntimeError: from the error file"}))
    (tmp_path / raised_name(3, 0)).write_bytes(msgspec.json.encode(RAISED))
    (tmp_path / raised_name(2, 1)).write_bytes(msgspec.json.encode(RAISED))
    Path(stderr_files[2]).write_bytes(b"x" * 10000 + b"\nlast words\n")
    read = read_exits(
        3,
        RANKS,
        sockets_dir=tmp_path,
        clock=clock,
        error_files=error_files,
        stderr_files=stderr_files,
        oom=oom,
        folders=[str(tmp_path), str(tmp_path / "later")],
    )
    assert read.attempt == 3
    assert {trace.global_rank: trace.error.error for trace in read.traces if trace.error} == {
        0: "torch.OutOfMemoryError",
        1: "RuntimeError",
    }
    assert [trace.stderr_tail for trace in read.traces if trace.global_rank == 2] == ["last words\n"]
    assert 3 not in {trace.global_rank for trace in read.traces}
    assert os.getpid() not in read.oom_pids, "others of the machine may be there"
    assert set(read.disk_free_bytes) == {str(tmp_path), str(tmp_path / "later")}
    msgspec.json.encode(read)


def test_nothing_left_is_an_answer_too(tmp_path: Path, clock: EngineClock, oom: OomWatch) -> None:
    read = read_exits(
        0, RANKS, sockets_dir=tmp_path / "gone", clock=clock, error_files={}, stderr_files={0: ""}, oom=oom
    )
    assert read.traces == []


def test_the_tail_of_a_huge_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(5 << 30)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b"\nend\n")
    assert read_tail(str(path)) == "end\n"
    assert read_tail(str(tmp_path)) == ""
