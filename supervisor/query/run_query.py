"""One query of one run: which tables it names, where their rows come from, and what there is to say about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.client.supervisor_client import STACKS_TIMEOUT_S, TIMEOUT_S, Unreachable
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.query import file_tables, journal_facts, journal_series, look_tables
from guardrun.supervisor.query.bounds import Answer, Bounds, FailedError
from guardrun.supervisor.query.journal_reader import JournalReader, LateError
from guardrun.supervisor.query.journal_series import Builder
from guardrun.supervisor.query.kept_look import NewestLook
from guardrun.supervisor.query.look_tables import Looked
from guardrun.supervisor.query.sandbox import ROWS_AT_ONCE, Sandbox
from guardrun.supervisor.query.table import Row, Table, by_name
from guardrun.supervisor.report.run_record import read_json
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.wire import control_messages

TABLES: tuple[Table, ...] = (
    file_tables.RANKS,
    journal_series.STEPS,
    journal_series.METRICS,
    journal_series.MEMORY,
    look_tables.COLLECTIVES,
    look_tables.THREADS,
    look_tables.WORKERS,
    journal_facts.BATCHES,
    journal_series.GPU,
    journal_facts.NODE_FINDINGS,
    file_tables.INCIDENTS,
    journal_facts.EVENTS,
    journal_facts.CHECKPOINTS,
    journal_facts.ATTEMPTS,
    look_tables.BACKTRACE,
    file_tables.TORCH_TRACE,
)
_NAMES = by_name(TABLES)
_STRANGE = (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError)
"""What rows of a journal that is none of ours may raise; msgspec's errors are ValueErrors."""

Ask = Callable[[str, dict[str, Any], float], control_messages.Answer]
"""Asks the run's supervisor: verb, arguments, seconds. Raises Unreachable."""


class _Stacks(msgspec.Struct, kw_only=True):
    """What a supervisor answers to `stacks`."""

    ranks: list[RankLook] = []
    missing: dict[int, str] = {}
    nodes: dict[int, str] = {}


class QueryResult(NamedTuple):
    """The answer, and what is to be said beside it."""

    answer: Answer
    notes: list[str]
    as_of: dict[str, dict[str, Any]]
    """Per live table that was named: `age_s`, or `time` (UTC) and `incident` of the look that it is from."""


class RunQuery:
    """Make one for each query: what it has fetched is as old as it is."""

    def __init__(self, run_dir: Path, run: RunFile, ask: Ask | None, why_not: str, bounds: Bounds) -> None:
        """ask: None where the run is not alive; why_not: then, why."""
        self._run_dir, self._run, self._ask, self._why_not, self._bounds = run_dir, run, ask, why_not, bounds
        self._notes: list[str] = []
        self._as_of: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._asked_s = 0.0

    def answer(self, sql: str) -> QueryResult:
        """Answer it. Raises RefusedError, FailedError, and KeyboardInterrupt."""
        sandbox = Sandbox(TABLES, self._bounds)
        try:
            read = sandbox.compile(sql)
            self._counts = dict.fromkeys(read, 0)
            self._fill(sandbox, read)
            answer = sandbox.run(sql)
        finally:
            sandbox.close()
        for name, count in self._counts.items():
            if not count:
                table = _NAMES[name]
                why = table.look_lacks if table.look_lacks and name in self._as_of else table.why_empty
                self._notes.append(f"{name} is empty: {why}")
        return QueryResult(answer, self._freshness() + self._notes, self._as_of)

    # Where rows come from ---------------------------------------------------------------------------------------------

    def _fill(self, sandbox: Sandbox, read: dict[str, frozenset[str]]) -> None:
        builders: dict[str, Builder] = {
            name: build for name, columns in read.items() if (build := self._builder(name, columns)) is not None
        }
        looked = None
        of_look = [name for name in read if name in look_tables.ROWS]
        if self._ask is not None and any(_NAMES[name].is_live for name in read):
            looked = self._fill_live(sandbox, read, builders, of_look)
        newest = NewestLook() if of_look and looked is None else None
        if builders or newest is not None:
            self._read_journal(sandbox, builders, newest)
        if newest is not None:
            looked = self._find_kept(newest, of_look)
        for name in of_look:
            # What a journal's looks told of batches is there already.
            if looked is not None and (newest is None or name not in builders):
                self._add(sandbox, name, self._in_time(look_tables.ROWS[name](looked)))
        if file_tables.INCIDENTS.name in read:
            self._add(sandbox, file_tables.INCIDENTS.name, self._in_time(file_tables.incident_rows(self._run_dir)))
        if file_tables.TORCH_TRACE.name in read:
            self._add_traces(sandbox)

    def _add(self, sandbox: Sandbox, name: str, rows: Iterable[Row]) -> None:
        self._counts[name] = self._counts.get(name, 0) + sandbox.fill(_NAMES[name], rows)

    def _add_traces(self, sandbox: Sandbox) -> None:
        name, left_out = file_tables.TORCH_TRACE.name, dict[int, int]()
        self._add(sandbox, name, self._in_time(file_tables.trace_rows(self._run_dir, left_out)))
        for number, count in list(left_out.items())[-3:]:
            self._notes.append(f"{name}: of request {number} the ranks had no room for {count:,} more rows")

    def _in_time(self, rows: Iterator[Row]) -> Iterator[Row]:
        deadline_s = time.monotonic() + self._bounds.seconds
        for row in rows:
            if time.monotonic() > deadline_s:
                raise FailedError(self._late())
            yield row

    def _late(self) -> str:
        return f"reading the run's files took longer than {self._bounds.seconds:g} s: --timeout gives it more"

    def _builder(self, name: str, read: frozenset[str]) -> Builder | None:
        match name:
            case "steps":
                return journal_series.Steps()
            case "metrics":
                return journal_series.Metrics()
            case "memory":
                return journal_series.Memory()
            case "gpu":
                return journal_series.Gpu()
            case "events":
                return journal_facts.Events(read)
            case "attempts":
                summary = read_json(self._run_dir / "summary.json", file_tables.MAX_FILE)
                return journal_facts.Attempts(self._run, read, summary)
            case "checkpoints":
                return journal_facts.Checkpoints(self._run)
            case "node_findings":
                return journal_facts.NodeFindings(self._run)
            case "batches":
                return journal_facts.Batches()
            case "ranks":
                return file_tables.Ranks()
            case _:
                return None

    # A living run -----------------------------------------------------------------------------------------------------

    def _fill_live(
        self, sandbox: Sandbox, read: Iterable[str], builders: dict[str, Builder], of_look: list[str]
    ) -> Looked | None:
        """Ranks and a look from the supervisor; what it does not tell is left to the files."""
        self._asked_s = time.monotonic()
        # One that is stopped or gone shows within seconds, whatever a look may take.
        status = self._try("status", {}, TIMEOUT_S)
        if status is None:
            return None
        name = file_tables.RANKS.name
        if name in read:
            builders.pop(name)
            ranks = status.get("ranks")
            rows = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
            self._add(sandbox, name, file_tables.status_rows(rows))
            self._as_of[name] = {"age_s": 0.0}
        if not of_look:
            return None
        data = self._try("stacks", {"rank": None}, STACKS_TIMEOUT_S)
        if data is None:
            return None
        try:
            told = msgspec.convert(data, known_type(_Stacks), str_keys=True)
        except (msgspec.ValidationError, ValueError) as error:
            self._why_not = f"its answer is not one of this version of guardrun ({error})"
            return None
        self._as_of |= {name: {"age_s": 0.0} for name in of_look}
        self._note_missing(told.missing)
        attempt = status.get("attempt")
        return Looked(told.ranks, [], told.nodes, attempt if isinstance(attempt, int) else None)

    def _try(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        assert self._ask is not None
        try:
            answer = self._ask(verb, arguments, timeout_s)
        except Unreachable as error:
            self._why_not = str(error)
            return None
        if not answer.is_ok:
            self._why_not = answer.error
            return None
        return answer.data

    def _note_missing(self, missing: dict[int, str]) -> None:
        by_reason: dict[str, list[int]] = {}
        for rank, why in missing.items():
            by_reason.setdefault(why, []).append(rank)
        for why, ranks in list(by_reason.items())[:8]:
            self._notes.append(f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)} could not be looked at: {why}")

    # The folder -------------------------------------------------------------------------------------------------------

    def _read_journal(self, sandbox: Sandbox, builders: dict[str, Builder], newest: NewestLook | None) -> None:
        """One pass for all tables. Raises FailedError."""
        reader = JournalReader(self._run_dir, time.monotonic() + self._bounds.seconds)
        waiting: dict[str, list[Row]] = {name: [] for name in builders}
        all_builders: list[tuple[str, Builder]] = [*builders.items(), *([("", newest)] if newest is not None else [])]
        try:
            for entry in reader.entries():
                try:
                    if newest is not None:
                        newest.note_incidents(entry)
                    for name, builder in all_builders:
                        if not builder.kinds or entry.kind in builder.kinds:
                            made = list(builder.rows(entry))
                            if made:
                                waiting[name] += made
                                if len(waiting[name]) >= ROWS_AT_ONCE:
                                    self._add(sandbox, name, waiting[name])
                                    waiting[name] = []
                except _STRANGE:
                    reader.unreadable += 1
        except LateError:
            raise FailedError(self._late()) from None
        for name, builder in builders.items():
            self._add(sandbox, name, [*waiting[name], *builder.last()])
        if reader.unreadable:
            lines = "1 line" if reader.unreadable == 1 else f"{reader.unreadable} lines"
            self._notes.append(f"left out what could not be read of the journal: {lines}")
        if not reader.is_from_start and not reader.is_missing:
            self._notes.append("the journal's beginning is not kept any more: rows begin later than the run")

    def _find_kept(self, newest: NewestLook, of_look: list[str]) -> Looked | None:
        kept = None
        try:
            kept = newest.find(self._run_dir, self._run)
        except _STRANGE:
            self._notes.append("the newest look in the journal could not be read")
        if kept is None:
            if self._ask is not None:
                self._notes.append(f"nobody could be asked: {self._why_not}")
            return None
        told = {"time": kept.time, "incident": kept.incident or None, "source": kept.words}
        self._as_of |= dict.fromkeys((name for name in of_look if name != "batches"), told)
        return kept.looked

    def _freshness(self) -> list[str]:
        """How old each live table is; tables of one look in one sentence."""
        now_s = time.monotonic()
        sentences: dict[str, list[str]] = {}
        for name, told in self._as_of.items():
            if "age_s" in told:
                self._as_of[name] = {"age_s": round(now_s - self._asked_s, 2)}
                words = f"as of {now_s - self._asked_s:.1f} s ago"
            else:
                words = f"as of {told['source']} ({self._why_not})"
            sentences.setdefault(words, []).append(name)
        if file_tables.RANKS.name in self._counts and file_tables.RANKS.name not in self._as_of:
            sentences.setdefault(f"as the journal leaves it ({self._why_not})", []).append(file_tables.RANKS.name)
        return [f"{', '.join(names)}: {words}" for words, names in sentences.items()]
