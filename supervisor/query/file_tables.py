"""Tables of what lies in the run's folder beside the journal, and of ranks as they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.query.journal_reader import Entry
from guardrun.supervisor.query.table import INTEGER, JSON, REAL, TEXT, Row, Table, columns, encode
from guardrun.supervisor.report.run_record import iterate_incidents
from guardrun.supervisor.rundir.traces import read_traces

MAX_FILE = 32 << 20
"""Bytes of a JSON file that is read whole."""

RANKS = Table(
    "ranks",
    "The ranks of the newest attempt: as the supervisor of a living run has them, else as the journal leaves them.",
    columns(
        ("rank", INTEGER, "global rank"),
        ("local_rank", INTEGER, "on its node"),
        ("node", TEXT, "where it runs"),
        ("pid", INTEGER, "its process"),
        ("state", TEXT, "the letter of /proc/PID/stat: R S D T t Z X; ?: not known"),
        ("exitcode", INTEGER, "negative: killed by that signal; NULL: it has not ended"),
        ("step", INTEGER, "the last one that it has finished"),
        ("step_time_s", REAL, "how long its steps take; of a living run"),
        ("phase", TEXT, "`train`, `eval`, `save`, …"),
        ("loss", REAL, "the last that was reported"),
        ("grad_norm", REAL, "likewise"),
        ("learning_rate", REAL, "likewise, of the first parameter group"),
        ("left_out", INTEGER, "steps of the attempt that guardrun left out"),
        ("data_share", REAL, "of the attempt's time: waiting for data; of a living run"),
        ("gc_share", REAL, "likewise: in garbage collections"),
        ("beat_age_s", REAL, "since its hooks' thread last showed that it runs; of a living run"),
        ("progress_age_s", REAL, "since anything of it last advanced; of a living run"),
        ("hooks", INTEGER, "1: it has hooks; of a living run"),
    ),
    "no ranks run, and the journal has none",
    is_live=True,
)
INCIDENTS = Table(
    "incidents",
    "The run's incidents.",
    columns(
        ("id", TEXT, "`001`, …"),
        ("attempt", INTEGER, "in which it was"),
        ("kind", TEXT, "`hang`, `crash`, `slowdown`, …"),
        ("cause", TEXT, "finer than that"),
        ("confidence", REAL, "0 to 1"),
        ("summary", TEXT, "one sentence"),
        ("culprits", JSON, "rank, node and pid of each"),
        ("onset", TEXT, "since when it was so, UTC"),
        ("detected", TEXT, "when it was told"),
        ("acted", TEXT, "when something was done about it"),
        ("recovered", TEXT, "when the run was further than before"),
        ("step", INTEGER, "at which step"),
        ("action", TEXT, "`none`, `restart`, `isolate_node`, `give_up`"),
        ("resumed_path", TEXT, "the checkpoint that was resumed from"),
        ("resumed_step", INTEGER, "its step"),
        ("advice", TEXT, "what to do"),
        ("evidence", JSON, "what it rests on"),
        ("folder", TEXT, "where its report and its stacks are"),
    ),
    "the run has had no incident",
)
TORCH_TRACE = Table(
    "python.torch_trace",
    "Passes through torch modules, as ranks measured them when a person asked for that.",
    columns(
        ("rank", INTEGER, "global rank"),
        ("step", INTEGER, "the rank's step"),
        ("module", TEXT, "its name within the outermost module; empty: that one itself"),
        ("stage", TEXT, "`forward`, `backward`, `recompute` (what a checkpoint computes again)"),
        ("duration", REAL, "seconds on the host's clock"),
        ("allocated", INTEGER, "bytes at its end: of the device's allocator, else the process's resident memory"),
        ("request", INTEGER, "which request, from 1"),
        ("attempt", INTEGER, "of the run, from 0"),
        ("node", TEXT, "where the rank ran"),
    ),
    "no module times were measured in this run: `guardctl trace on` measures them",
)


def trace_rows(run_dir: Path, left_out: dict[int, int]) -> Iterator[Row]:
    """All that was measured; left_out gets, by request, how many rows there was no room for."""
    for trace in read_traces(run_dir):
        if trace.left_out:
            left_out[trace.number] = left_out.get(trace.number, 0) + trace.left_out
        for row in trace.rows:
            allocated = row.allocated if row.allocated >= 0 else None
            what = (trace.rank, row.step, row.module, row.stage, row.duration, allocated)
            yield (*what, trace.number, trace.attempt, trace.node)


def incident_rows(run_dir: Path) -> Iterator[Row]:
    """All incidents that can be read."""
    for record in iterate_incidents(run_dir, MAX_FILE):
        resumed = record.get("resumed_from")
        path, step = (resumed.get("path"), resumed.get("step")) if isinstance(resumed, dict) else (None, None)
        values = {
            **record,
            "culprits": encode(record.get("culprits")),
            "evidence": encode(record.get("evidence")),
            "resumed_path": path,
            "resumed_step": step,
        }
        yield tuple(_plain(values.get(column.name)) for column in INCIDENTS.columns)


def status_rows(ranks: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Ranks as a supervisor answers to `status`."""
    names = {"rank": "global_rank", "beat_age_s": "last_beat_s", "progress_age_s": "last_progress_s"}
    for rank in ranks:
        yield tuple(_plain(rank.get(names.get(column.name, column.name))) for column in RANKS.columns)


def _plain(value: Any) -> Any:
    """What should be a plain value, and may be anything."""
    return value if value is None or isinstance(value, str | int | float) else encode(value)


class Ranks:
    """Those of the newest attempt, as the journal leaves them."""

    kinds = frozenset({"attempt_started", "node_report", "rank_exited", "attempt_stopped"})

    def __init__(self) -> None:
        self._ranks: dict[int, dict[str, Any]] = {}

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        event = entry.event
        if isinstance(event, ev.AttemptStarted):
            self._ranks = {rank.global_rank: msgspec.to_builtins(rank) for rank in event.ranks}
        elif isinstance(event, ev.NodeReport):
            for report in event.ranks:
                self._note(report)
        else:
            exitcodes = (
                {event.global_rank: event.exitcode} if isinstance(event, ev.RankExited) else dict(event.exitcodes)
            )
            for rank, exitcode in exitcodes.items():
                if rank in self._ranks:
                    self._ranks[rank]["exitcode"] = exitcode
        yield from ()

    def _note(self, report: ev.RankReport) -> None:
        rank = self._ranks.get(report.global_rank)
        if rank is None:
            return
        rank |= {"state": report.state, "phase": report.phase or rank.get("phase")}
        if report.step:
            rank["step"] = report.step
        if (one := report.metrics) is not None:
            known = {"loss": one.loss, "grad_norm": one.grad_norm, "learning_rate": one.learning_rate}
            rank |= {name: value for name, value in known.items() if value is not None}
            rank["left_out"] = one.left_out

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        return status_rows({"state": "?", **rank} for _, rank in sorted(self._ranks.items()))
