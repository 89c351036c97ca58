"""What the tables say of a run that is over: all of it from its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.query.bounds import Bounds, FailedError
from guardrun.supervisor.query.journal_facts import BATCHES, batch_of_look
from guardrun.supervisor.query.run_query import TABLES, QueryResult, RunQuery
from guardrun.supervisor.rundir.journal import NAME
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.rundir.traces import ModuleTrace, TraceRow, write_trace
from guardrun.supervisor.wire.control_messages import Answer as ControlAnswer
from tests.query.conftest import DEVICE, NODE, append, look, make_run, report, story
from tests.support.journals import FOLDER as JOURNALS
from tests.support.journals import read as read_journal

Run = tuple[Path, RunFile]
THREE = (
    "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10",
    "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time "
    "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) "
    "GROUP BY module, stage ORDER BY total_time DESC LIMIT 10",
    "SELECT step, MAX(allocated) AS peak_memory, MAX(allocated) - MIN(allocated) AS memory_range "
    "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace) GROUP BY step ORDER BY step",
)
"""Queries that people know, as they stand."""


def ask(run: Run, sql: str, bounds: Bounds | None = None) -> QueryResult:
    return RunQuery(*run, None, "the run is over", bounds or Bounds(seconds=60.0)).answer(sql)


def rows(run: Run, sql: str) -> list[tuple[Any, ...]]:
    return list(ask(run, sql).answer.rows)


def test_the_three(full: Run) -> None:
    stacks, modules, memory = (ask(full, sql) for sql in THREE)
    assert stacks.answer.columns == ["func", "file", "lineno", "depth"] and len(stacks.answer.rows) == 10
    assert {row[3] for row in stacks.answer.rows[:4]} == {0}
    assert stacks.notes == ["python.backtrace: as of the look of incident 001, 2026-11-18T11:07:20Z (the run is over)"]
    assert stacks.as_of["python.backtrace"]["incident"] == "001"
    assert modules.answer.columns == ["module", "stage", "count", "avg_time", "total_time"]
    assert [(row[0], row[1], row[2], round(row[3], 9)) for row in modules.answer.rows] == [  # type: ignore[arg-type]
        ("layers.0", "backward", 10, 0.03),
        ("layers.0", "forward", 10, 0.02),
        ("", "forward", 10, 0.01),
    ]
    assert memory.answer.rows == [(step, 1000 * step + 2, 2) for step in range(11, 31)]
    assert modules.notes == memory.notes == []


def test_every_table_has_rows_and_every_column_a_value(full: Run) -> None:
    """None of a run's tables is made of columns that nothing ever fills."""
    without: dict[str, set[str]] = {}
    for table in TABLES:
        told = ask(full, f"SELECT * FROM {table.name}").answer
        assert told.columns == [column.name for column in table.columns]
        assert told.rows, table.name
        for number, column in enumerate(table.columns):
            if all(row[number] in (None, "") for row in told.rows):
                without.setdefault(table.name, set()).add(column.name)
    living = {"step_time_s", "data_share", "gc_share", "beat_age_s", "progress_age_s", "hooks"}
    assert without == {
        "ranks": living | {"loss", "grad_norm", "learning_rate", "left_out"},
        "metrics": {"odd_loss"},
        "collectives": {"peer"},
        "workers": {"trouble"},
        "node_findings": {"key", "advice"},
        "events": {"error"},
        "attempts": {"error"},
    }


def test_rows_of_a_trace_that_had_no_room_are_counted(full: Run) -> None:
    rows_of_one = [TraceRow(1, "x", "forward", 0.1, -1)]
    for rank in range(2):
        told = ModuleTrace(number=2, rank=rank, node=NODE, attempt=0, at_s=9.0, rows=rows_of_one, left_out=5)
        write_trace(full[0], told)
    found = ask(full, "SELECT rank, allocated FROM python.torch_trace WHERE request = 2")
    assert found.answer.rows == [(0, None), (1, None)]
    assert found.notes == ["python.torch_trace: of request 2 the ranks had no room for 10 more rows"]


def test_steps_are_what_was_added_between_two_reports(full: Run) -> None:
    found = rows(full, "SELECT rank, attempt, at_s, step, steps, time_s, work_s, waiting_s, data_s, gc_s FROM steps")
    assert found == [
        (0, 0, 5.0, 10, 10, 4.0, 2.25, 1.0, 0.5, 0.25),
        (1, 0, 5.0, 10, 10, 4.0, 4.0, 0.0, 0.0, 0.0),
        (0, 0, 9.0, 20, 10, 5.0, 4.0, 1.0, 0.0, 0.0),
        (1, 0, 9.0, 20, 10, 4.0, 4.0, 0.0, 0.0, 0.0),
        (0, 1, 50.0, 25, 5, 2.0, 2.0, 0.0, 0.0, 0.0),
    ]


def test_steps_from_before_what_is_kept_are_not_counted(tmp_path: Path) -> None:
    """The first report that is left has sums since a time that nobody knows."""
    run_dir, run = make_run(tmp_path)
    append(run_dir, *story()[2:5])
    told = ask((run_dir, run), "SELECT rank, steps, time_s FROM steps")
    assert told.answer.rows == [(0, 10, 5.0), (1, 10, 4.0)]


def test_a_journal_whose_beginning_is_gone_says_so(full: Run) -> None:
    journal = full[0] / NAME
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[4:]))
    told = ask(full, "SELECT count(*) FROM events")
    assert told.answer.rows == [(11,)]
    assert told.notes == ["the journal's beginning is not kept any more: rows begin later than the run"]


def test_rotated_files_are_read_in_their_order(full: Run) -> None:
    journal = full[0] / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    for name, part in ((f"{NAME}.2", lines[:3]), (f"{NAME}.1", lines[3:8]), (NAME, lines[8:])):
        (full[0] / name).write_bytes(b"".join(part))
    assert [row[0] for row in rows(full, "SELECT n FROM events")] == list(range(15))


def test_metrics_and_memory(full: Run) -> None:
    found = rows(full, "SELECT first_step, step, loss, grad_norm, learning_rate, odd, odd_step, odd_norm FROM metrics")
    assert found == [(1, 10, 2.5, 1.0, 1e-3, 0, None, None), (11, 20, 2.25, None, 5e-4, 1, 14, 3.0)]
    columns = "rank, step, resident, host_limit, allocated, reserved, peak, inactive, ooms"
    assert rows(full, f"SELECT {columns} FROM memory") == [
        (0, 20, 1000, 10_000, 500, 1000, 900, 100, 0),
        (1, 20, 1000, 10_000, None, None, None, None, None),
    ]


def test_what_happened(full: Run) -> None:
    assert rows(full, "SELECT attempt, resumed_step, last_step, exitcodes, stopped_by_guardrun FROM attempts") == [
        (0, None, 20, '{"0": -15, "1": -9}', "[0, 1]"),
        (1, 20, 25, '{"0": -15, "1": 1}', "[0]"),
    ]
    assert rows(full, "SELECT what, rank, path, step, why FROM checkpoints") == [
        ("saved", 0, "/out/ckpt_20.pt", 20, None),
        ("chosen", None, "/out/ckpt_20.pt", 20, None),
        ("skipped", None, "/out/ckpt_30.pt", None, "it is torn"),
    ]
    assert rows(full, "SELECT node, cause, since_s, is_over, json_extract(evidence, '$.c') FROM node_findings") == [
        (NODE, "thermal", 5.0, 0, 91)
    ]
    assert rows(full, "SELECT device, rank, name, value FROM gpu") == [
        (DEVICE, 0, "temperature_c", 91.0),
        (DEVICE, 0, "busy_share", 0.5),
        ("", 1, "busy_share", 0.5),
    ]
    assert rows(full, "SELECT source, rank, step, batch, indices, is_awaited FROM batches") == [
        ("pass", 0, 1, None, "ab12", 0),
        ("odd", 0, 14, None, "[8,9]", 0),
        ("look", 0, None, 12, "[3, 4]", 0),
        ("look", 1, None, 12, "[3, 4]", 1),
        ("error", 1, None, 31, "[1,2]", 0),
    ]
    [(count, size)] = rows(full, "SELECT count(*), sum(length(data)) FROM events")
    assert (count, size > 1000) == (15, True)
    assert rows(full, "SELECT at_s, rank, json_extract(data, '$.pid') FROM events WHERE type = 'rank_exited'") == [
        (52.0, 1, 4242)
    ]
    assert rows(full, "SELECT type FROM events WHERE actions LIKE '%write_incident%'") == [("look_taken",)]
    assert rows(full, "SELECT id, cause, step, resumed_step, json_array_length(culprits) FROM incidents") == [
        ("001", "rank_blocked", 60, 40, 1)
    ]
    assert rows(full, "SELECT rank, pid, step, exitcode FROM ranks") == [(0, 4241, 25, -15), (1, 4242, None, 1)]


def test_what_a_look_showed(full: Run) -> None:
    assert rows(full, "SELECT rank, func, is_main FROM threads WHERE is_rank AND is_main") == [
        (0, "all_reduce", 1),
        (1, "readinto", 1),
    ]
    assert rows(full, "SELECT rank, ppid, state, wchan, func FROM workers") == [
        (0, 4241, "S", "", "poll"),
        (1, 4242, "D", "nfs_wait", "poll"),
    ]
    assert rows(full, "SELECT seq, op, state, sizes, func, lineno FROM collectives WHERE rank = 0") == [
        (6, "all_reduce", "completed", "[]", None, None),
        (7, "broadcast", "issued", "[[2,3]]", "sync", 5),
        (None, "broadcast", "inside", None, None, None),
    ]
    depths = rows(full, "SELECT depth, func FROM python.backtrace WHERE rank = 1 AND is_main AND pid = 4242")
    assert depths[0] == (0, "readinto") and depths[-1] == (5, "<module>")


def test_stacks_in_files_do_where_the_journal_has_none(full: Run) -> None:
    (full[0] / NAME).unlink()
    folder = full[0] / "incidents" / "001-rank_blocked" / "stacks"
    text = "rank 0, pid 7 (the rank itself): python\n\n"
    text += 'Thread 7 (main), most recent call last:\n  File "a.py", line 3, in f\n'
    (folder / "rank-0-pid-7.txt").write_text(text)
    told = ask(full, "SELECT rank, pid, thread, depth, func, file, lineno FROM python.backtrace")
    assert told.answer.rows == [(0, 7, None, 0, "f", "a.py", 3)]
    assert "as of the look of incident 001" in told.notes[0]


def test_exceptions_do_where_nobody_looked(tmp_path: Path) -> None:
    run_dir, run = make_run(tmp_path)
    append(run_dir, *[(at_s, event) for at_s, event in story() if not isinstance(event, ev.LookTaken)])
    told = ask((run_dir, run), "SELECT rank, pid, depth, func, lineno FROM python.backtrace")
    assert told.answer.rows == [(1, 4242, 0, "load", 3), (1, 4242, 1, "main", 9)]
    assert "as of the exceptions that ended ranks" in told.notes[0]


def test_an_empty_table_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for table in TABLES:
        told = ask(run, f"SELECT count(*) FROM {table.name}")
        assert told.answer.rows == [(0,)]
        assert f"{table.name} is empty: {table.why_empty}" in told.notes
        assert len(told.notes) <= 2
    assert ask(run, "SELECT 1").notes == []
    assert "`guardctl trace on` measures them" in ask(run, THREE[2]).notes[0]


def test_an_empty_table_of_a_look_is_not_said_to_have_no_look(tmp_path: Path) -> None:
    """Beside "as of 0.1 s ago" it would contradict itself."""
    run_dir, run = make_run(tmp_path)
    answers: dict[str, dict[str, Any]] = {"status": {"attempt": 0, "ranks": []}, "stacks": {"ranks": []}}
    for name, lacks in (("workers", "processes below the ranks"), ("collectives", "process group")):
        query = RunQuery(
            run_dir, run, lambda verb, *_: ControlAnswer(is_ok=True, data=answers[verb]), "", Bounds(seconds=60.0)
        )
        fresh, empty = query.answer(f"SELECT * FROM {name}").notes
        assert fresh.startswith(f"{name}: as of 0.") and empty == f"{name} is empty: that look has no {lacks}"


HOSTILE = [
    b"not json\n",
    b'{"n": 3, "t": "x", "event": {"type": "node_report"}}\n',
    b'{"n": 4, "t": 1e308, "event": {"type": "checkpoint_saved", "attempt": 1e99}}\n',
    b'{"n": 5, "t": 1, "event": {"type": "node_report", "node": "x", "attempt": 0, "ranks": [{"global_rank": "a"}]}}\n',
    b'{"n": 6, "t": 1, "event": [1]}\n',
    b'{"n": 7, "t": 1, "event": {"type": "from_the_future", "step": 1}}\n',
    b'{"n": 8, "t": 1, "event": {"type": "rank_exited"}}\n',
    b"[" * 100_000 + b"\n",
    b'{"n": 9, "t": 1, "event": ' + b'{"type": ' * 20_000 + b"\n",
    b"\xff\xfe\n",
    b'{"n": 10, "t": 1, "event": {"type": "node_report"}, "actions": 3}\n',
    b'{"n": 11, "t": 1e300, "event": {"type": "checkpoint_saved", "attempt": 99999999999999999999999999, '
    b'"global_rank": 0, "path": "<script>\\u001b[2J", "step": 1, "duration_s": 1}}\n',
    b'{"n": 12, "t": 2, "ev',
]


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_a_broken_run_is_read_as_far_as_it_goes(full: Run, table: str) -> None:
    whole = rows(full, f"SELECT * FROM {table}")
    with (full[0] / NAME).open("ab") as file:
        file.writelines(HOSTILE)
    for name in ("summary.json", "incidents/002-x/incident.json", "traces/002-rank-0.json"):
        (full[0] / name).parent.mkdir(exist_ok=True)
        (full[0] / name).write_bytes(b"[" * 50_000)
    (full[0] / "incidents/003-y").mkdir()
    (full[0] / "incidents/003-y/incident.json").write_text(
        json.dumps({"id": ["no"], "step": {"a": 1}, "culprits": float("inf"), "confidence": "high"}).replace(
            "Infinity", "1"
        )
    )
    told = ask(full, f"SELECT * FROM {table}")
    assert len(told.answer.rows) >= len(whole)
    json.dumps(told.answer.rows)


def test_a_line_that_is_far_too_long_is_passed_over(full: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = full[0] / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    longest = max(map(len, lines))
    monkeypatch.setattr("guardrun.supervisor.query.journal_reader.MAX_LINE", longest + 1)
    journal.write_bytes(b"".join(lines[:5]) + b"x" * (3 << 20) + b"\n" + b"".join(lines[5:]))
    told = ask(full, "SELECT count(*) FROM events")
    assert told.answer.rows == [(15,)] and told.notes == ["left out what could not be read of the journal: 1 line"]


def test_reading_has_its_time(full: Run) -> None:
    with pytest.raises(FailedError, match="reading the run's files took longer than 0 s: --timeout gives it more"):
        ask(full, "SELECT * FROM events", Bounds(seconds=0.0))


def test_only_what_a_query_names_is_read(full: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it is not named")

    monkeypatch.setattr("guardrun.supervisor.query.run_query.JournalReader", refuse)
    assert rows(full, "SELECT count(*) FROM incidents") == [(1,)]
    monkeypatch.setattr("guardrun.supervisor.query.file_tables.read_traces", refuse)
    assert rows(full, "SELECT 1 + 1") == [(2,)]
    with pytest.raises(AssertionError):
        rows(full, THREE[1])


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below a folder: when it was changed, and what it holds."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


def test_nothing_in_the_run_changes(full: Run) -> None:
    before = contents(full[0])
    for table in TABLES:
        ask(full, f"SELECT * FROM {table.name}")
    assert contents(full[0]) == before


def test_recorded_journals_can_be_asked(tmp_path: Path) -> None:
    """Of real runs, of an older version of the journal, too."""
    run_dir, run = make_run(tmp_path)
    events = looks = 0
    for path in sorted(JOURNALS.glob("*.gz"))[::6]:
        lines = read_journal(path.name.partition(".")[0])
        (run_dir / NAME).write_bytes(b"\n".join(lines) + b"\n")
        told = ask((run_dir, run), "SELECT count(*), sum(type = 'look_taken') FROM events")
        [(count, some)] = told.answer.rows
        assert count == len(lines) and told.notes == []
        events, looks = events + int(count), looks + int(some or 0)  # type: ignore[call-overload]
        assert rows((run_dir, run), "SELECT count(*) > 1 FROM ranks") == [(1,)]
        frames = rows((run_dir, run), "SELECT count(*) FROM python.backtrace")[0][0]
        assert bool(frames) is (b'"look_taken"' in b"".join(lines) or b'"frames":' in b"".join(lines)), path
    assert events > 100 and looks > 10


def test_a_thousand_ranks_and_a_large_journal_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """Streamed: what is held at once is the table, not the journal."""
    run_dir, run = make_run(tmp_path)
    ranks = [ev.Rank(global_rank=n, local_rank=n % 8, pid=10_000 + n, node=f"n{n // 8}") for n in range(1000)]
    reports = [
        (
            float(at),
            ev.NodeReport(
                node="n0", attempt=0, ranks=[report(n, at, (at, at * 0.5, 0.1, 0.0, 0.0)) for n in range(1000)]
            ),
        )
        for at in range(1, 11)
    ]
    append(run_dir, (0.0, ev.AttemptStarted(attempt=0, ranks=ranks)), *reports)
    assert rows((run_dir, run), "SELECT count(*), count(DISTINCT rank), sum(steps) FROM steps") == [
        (10_000, 1000, 10_000)
    ]
    look_event = ev.LookTaken(look=1, attempt=0, ranks=[look(n, 30.0) for n in range(1000)])
    append(run_dir, (30.0, look_event))
    assert rows((run_dir, run), "SELECT count(DISTINCT rank) FROM python.backtrace") == [(1000,)]


def test_whether_a_rank_that_moves_on_waits_for_a_batch_is_not_known() -> None:
    """Of such a rank the number of batches that it got is all that a look has."""
    moving = msgspec.structs.replace(look(0, 50.0), batch={}, batches=69)
    [row] = batch_of_look(moving, 0)
    names = [column.name for column in BATCHES.columns]
    known = {name: value for name, value in zip(names, row, strict=True) if value is not None}
    assert known == {"at_s": 50.0, "attempt": 0, "rank": 0, "source": "look", "batch": 69}
    still = msgspec.structs.replace(moving, batch={"batch": 70, "is_awaited": True})
    assert [(row[5], row[8]) for row in batch_of_look(still, 0)] == [(70, True)]
    assert list(batch_of_look(msgspec.structs.replace(moving, batches=0), 0)) == []
