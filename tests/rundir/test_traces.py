"""Times of modules are kept as they were measured, and the oldest go where there are too many."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.rundir import traces as module
from guardrun.supervisor.rundir.run_directory import check_run_dir
from guardrun.supervisor.rundir.traces import (
    ModuleTrace,
    TraceRow,
    next_number,
    parse_rows,
    prune_traces,
    read_newest,
    read_traces,
    write_trace,
)


def trace(number: int, rank: int = 0) -> ModuleTrace:
    rows = [TraceRow(7, "layers.0", "forward", 0.0015, 1 << 30), TraceRow(7, "", "backward", 0.5, -1)]
    return ModuleTrace(number=number, rank=rank, node="node-a", attempt=1, at_s=12.5, rows=rows, steps=[(7, 1.0)])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert list(read_traces(tmp_path)) == [] and next_number(tmp_path) == 1
    for number, rank in ((2, 11), (1, 3), (2, 2)):
        write_trace(tmp_path, trace(number, rank))
    assert list(read_traces(tmp_path)) == [trace(1, 3), trace(2, 2), trace(2, 11)]
    assert list(read_traces(tmp_path, 2)) == read_newest(tmp_path) == [trace(2, 2), trace(2, 11)]
    assert next_number(tmp_path) == 3
    folder = tmp_path / "traces"
    assert folder.stat().st_mode & 0o777 == 0o700
    check_run_dir(tmp_path)


def test_what_is_no_trace_is_passed_over(tmp_path: Path) -> None:
    write_trace(tmp_path, trace(1))
    folder = tmp_path / "traces"
    (folder / "002-rank-0.json").write_text("[" * 100_000)
    (folder / "003-rank-0.json").symlink_to(folder / "001-rank-0.json")
    (folder / "notes.txt").write_text("mine")
    assert list(read_traces(tmp_path)) == read_newest(tmp_path) == [trace(1)]


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3, 4):
        write_trace(tmp_path, trace(number))
    prune_traces(tmp_path)
    assert len(list(read_traces(tmp_path))) == 4
    monkeypatch.setattr(module, "KEEP", 3)
    prune_traces(tmp_path)
    assert [one.number for one in read_traces(tmp_path)] == [2, 3, 4]
    monkeypatch.setattr(module, "KEEP_BYTES", 2 * len(msgspec.json.encode(trace(4))) + 10)
    prune_traces(tmp_path)
    assert [one.number for one in read_traces(tmp_path)] == [3, 4]


def test_rows_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = parse_rows("7 1 0 1500000 4096;8 0 1 20 -1", ["", "head"], ["forward", "backward"])
    assert rows == [TraceRow(7, "head", "forward", 0.0015, 4096), TraceRow(8, "", "backward", 2e-8, -1)]
    assert parse_rows("", [], []) == []
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    assert len(parse_rows(";".join(["1 0 0 1 1"] * 9), ["a"], ["forward"])) == 3


@pytest.mark.parametrize(
    "text", ["1 2 3", "a b c d e", "1 9 0 1 1", "1 0 9 1 1", "1 -1 0 1 1", "1 0 0 -5 1", ";", "1 0 0 1 1;"]
)
def test_rows_that_are_none(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_rows(text, ["a"], ["forward"])
