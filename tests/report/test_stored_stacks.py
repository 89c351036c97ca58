"""Stacks by group, and reading them back from a look's files."""

from __future__ import annotations

from pathlib import Path

from guardrun.supervisor.collect.ranks.look_files import render_process, write_look
from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, MAIN, THREAD, Stack, stacks_of
from guardrun.supervisor.report.elements.evidence_reader import parse_frames
from guardrun.supervisor.report.elements.stored_stacks import list_files, parse_process, read_stacks
from tests.report.samples import rank_look


def test_frames_from_any_data() -> None:
    assert parse_frames([["f", "x.py", 3], {"name": "g", "filename": "y.py", "line": 4}, "h", None, [1]]) == [
        Frame("f", "x.py", 3),
        Frame("g", "y.py", 4),
    ]
    assert parse_frames("nothing") == []


def test_a_looks_files_read_back_as_they_were(tmp_path: Path) -> None:
    """What the collectors write and what the report reads must not drift apart."""
    looks = [rank_look(rank) for rank in range(3)]
    assert write_look(tmp_path, looks, {}) == ""

    def key(stack: Stack) -> tuple[int, int, str, str]:
        return stack.rank, stack.pid, stack.kind, stack.name

    wanted = [stack for look in looks for stack in stacks_of(look)]
    read = read_stacks(tmp_path)
    assert sorted(map(key, read)) == sorted(map(key, wanted))
    assert [s.frames for s in sorted(read, key=key)] == [s.frames for s in sorted(wanted, key=key)]
    stopped = next(stack for stack in read if stack.kind == CHILD and stack.rank == 1)
    assert "nfs_wait" in stopped.note


def test_a_process_without_stacks_keeps_its_reason() -> None:
    process = ProcessLook(pid=7, command="python train.py", state="T", trouble="ptrace refused")
    look = RankLook(global_rank=0, at_s=1.0, process=process)
    [read] = parse_process("rank-0-pid-7.txt", render_process(look, process))
    assert read.kind == MAIN and read.frames == []
    assert read.note == "stopped by a signal; ptrace refused"
    [direct] = stacks_of(look)
    assert direct.note == read.note


def test_kinds_of_threads() -> None:
    assert [stack.kind for stack in stacks_of(rank_look(0))] == [MAIN, THREAD, CHILD]


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "rank-0-pid-1.txt").write_bytes(b"\xff\x00 not ours")
    (tmp_path / "rank-10-pid-1.txt").write_text("")
    (tmp_path / "rank-9-pid-1.txt").write_text("")
    assert [stack.rank for stack in read_stacks(tmp_path)] == [0, 9, 10]
    assert list_files(tmp_path)[-2:] == ["rank-9-pid-1.txt", "rank-10-pid-1.txt"]
    assert list_files(tmp_path / "none") == []
