"""What each tool does: guardctl's own questions, and their answers as lines that quote the run.

Called in a process of its own for each call (worker.py): what is read here may be endless, or not answer.
"""

from __future__ import annotations

import argparse
import io
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import make_harmless
from guardrun.supervisor.cli.assistants import hints
from guardrun.supervisor.cli.assistants import tools as to
from guardrun.supervisor.cli.assistants.answers import Answer, quote
from guardrun.supervisor.cli.base.asking import ask_run, who_asks
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.status_reader import read_status
from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, find_run, is_alive, read_run, this_node
from guardrun.supervisor.cli.verbs import compare, diagnose, incidents, inspect, order, query, status, trace
from guardrun.supervisor.cli.views.diagnosis_view import incidents_view, print_diagnosis
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.report.incident import incident_folders
from guardrun.supervisor.report.run_record import read_incidents, read_json, short_incident
from guardrun.supervisor.rundir.run_directory import list_runs

MAX_SUMMARY = 16 << 20
"""Bytes of a summary.json, of which a list of runs needs a word."""
NAME_MAX = 255
"""limits.h: bytes of a file's name."""
WHO = "by guardctl mcp"


class Scope(NamedTuple):
    """What an assistant may look at: the folders of runs that its server was started for."""

    folders: tuple[Path, ...]
    """Absolute, without links."""
    environ: Mapping[str, str]
    cwd: Path

    def node(self) -> str:
        """This node's name."""
        return this_node(self.environ)

    def find_named(self, name: str) -> Path:
        """The run that is to be changed: the newest may not be the one that is meant. Raises CtlError."""
        if name == to.LATEST:
            raise CtlError("what changes a run needs its id, not latest")
        return self.find(name)

    def find(self, name: str) -> Path:
        """A run's folder, which lies in one of these. Raises CtlError."""
        if not name.isprintable() or any(len(part.encode()) > NAME_MAX for part in name.split("/")):
            raise CtlError("no run has such a name")
        if "/" in name or name in (".", ".."):
            path = self._within((self.cwd / name).resolve())  # before anything is looked for there
            return self._within(find_run(str(path), self.cwd, self.cwd))
        if name == to.LATEST and len(self.folders) > 1:
            # The newest that is the user's own in each; of these the one that began last.
            found = [run for folder in self.folders for run in self._latest(folder)]
            if not found:
                raise CtlError("none of the folders has a run")
            return self._within(max(found, key=lambda run: read_run(run).created_wall_s))
        found = [folder / name for folder in self.folders if (folder / name / "run.json").exists()]
        if len(found) > 1:
            raise CtlError(f"{len(found)} folders have a run {name}; name one: {', '.join(map(str, found))}")
        folder = found[0].parent if found else self.folders[0]
        return self._within(find_run(name, folder, self.cwd))

    def _latest(self, folder: Path) -> list[Path]:
        try:
            return [find_run(to.LATEST, folder, self.cwd)]
        except CtlError:
            return []

    def _within(self, run_dir: Path) -> Path:
        """run_dir: without links, as `find_run` answers it."""
        if run_dir.parent not in self.folders:
            raise CtlError(f"{run_dir} lies in none of the folders that guardctl mcp was started for")
        return run_dir


class Quoting(Output):
    """Takes down what a verb prints."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.file = io.StringIO()
        self.asides: list[str] = []
        super().__init__(False, {name: value for name, value in environ.items() if name != "COLUMNS"}, self.file)

    def aside(self, message: str) -> None:
        """What goes to stderr elsewhere is part of the answer."""
        self.asides.append(message)


def _call(scope: Scope, run_dir: Path | None, **arguments: Any) -> tuple[Call, Quoting]:
    """A call of a verb, whose answer is taken down."""
    out = Quoting(scope.environ)
    given = argparse.Namespace(run=str(run_dir) if run_dir else "", guard_dir=None, **arguments)
    return Call(given, scope.environ, scope.cwd, out, WHO), out


def _answer(said: str, out: Quoting, following: list[str] | None = None) -> Answer:
    lines, is_cut = quote([text for text in (out.file.getvalue().strip("\n"), *out.asides) if text])
    return Answer(said=said, lines=lines, next=following or [], is_cut=is_cut)


# The questions ------------------------------------------------------------------------------------------------------


def _runs(scope: Scope, given: to.RunsArguments) -> Answer:
    out = Quoting(scope.environ)
    found = [list_runs(folder) for folder in scope.folders]
    rows: list[tuple[float, list[str]]] = []
    for run_dir in (run for runs in found for run in runs[: given.limit]):
        name = run_dir.name if len(found) == 1 else str(run_dir)
        try:
            run = read_run(run_dir)
        except CtlError as error:
            rows.append((0.0, [name, "can't be read", "", "", str(error)]))
            continue
        summary = read_json(run_dir / "summary.json", MAX_SUMMARY)
        alive = is_alive(run, scope.node())
        state = "alive" if alive else f"led by {run.node}" if alive is None else "unfinished"
        if summary is not None:
            state = str(summary.get("outcome", "ended")).replace("_", " ")
        count = len(incident_folders(run_dir))
        began = iso_time(run.created_wall_s)
        cells = [name, state, began, str(count) if count else "", " ".join(run.script[1:] or run.script)]
        rows.append((run.created_wall_s, cells))
    rows = sorted(rows, key=lambda row: row[0], reverse=True)[: given.limit]
    said = f"runs: {len(rows)} of {sum(map(len, found))}, newest first." if rows else "runs: there are none."
    if rows:
        out.table(["Run", "State", "Began", "Incidents", "Script"], [cells for _, cells in rows])
    else:
        out.line(f"in {', '.join(map(str, scope.folders))}")
    return _answer(said, out, ["next: status of one of them"] if rows else [])


def _status(scope: Scope, given: to.RunArguments) -> Answer:
    _, out = _call(scope, None)
    told = read_status(scope.find(given.run), scope.node())
    out.print(status.render_status(out, told))
    state, count = hints.word(told.get("state"), hints.STATES), len(told.get("incidents") or [])
    said = f"status: {state}, {count} incident{'' if count == 1 else 's'}."
    return _answer(said, out, hints.after_status(state, count))


def _incidents(scope: Scope, given: to.RunArguments) -> Answer:
    _, out = _call(scope, None)
    records = [short_incident(record) for record in read_incidents(scope.find(given.run))]
    if not records:
        return Answer(said="incidents: there are none.")
    out.print(incidents_view(out, records))
    said = f"incidents: {len(records)}, oldest first, times are UTC."
    return _answer(said, out, ['next: show {"incident": "1"} for one of them'])


def _show(scope: Scope, given: to.ShowArguments) -> Answer:
    _, out = _call(scope, None)
    record = incidents.find_incident(scope.find(given.run), given.incident)
    incidents.print_incident(out, record, given.full)
    action = hints.ACTIONS.get(str(record.get("action")), "")
    said = f"show: {hints.cause_words(record.get('kind'), record.get('cause'))}"
    said += f"{hints.ranks_words(record.get('culprits'))}{'; ' + action if action else ''}."
    return _answer(said, out, hints.after_incident(record))


def _diagnose(scope: Scope, given: to.DiagnoseArguments) -> Answer:
    run_dir = scope.find(given.run)
    call, out = _call(scope, run_dir, gap=given.gap)
    told, looks = diagnose.diagnose_run(call, run_dir)
    told.next = []  # commands for a person; what follows here are tools
    print_diagnosis(out, told, looks, given.full)
    cause = f", {hints.cause_words(told.kind, told.cause)}" if told.cause else ""
    cause = cause.replace(f", {told.verdict} (", " (")  # a hang is a hang
    named = hints.ranks_words(msgspec.to_builtins(told.culprits)) if told.cause else ""
    said = f"diagnose: {told.verdict}{cause}, {min(max(told.confidence, 0.0), 1.0):.0%} sure{named}."
    return _answer(said, out, hints.after_diagnosis(told.verdict, told.kind))


def _stacks(scope: Scope, given: to.StacksArguments) -> Answer:
    run_dir = scope.find(given.run)
    call, out = _call(scope, run_dir, rank=given.rank, full=given.full, all=False)
    data, looks = order.ask_stacks(call)
    order.print_looks(call, data, looks)
    ranks = [look.global_rank for look in looks]
    of = f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}" if ranks else "no rank"
    return _answer(f"stacks: of {of}.", out)


def _query(scope: Scope, given: to.QueryArguments) -> Answer:
    from guardrun.supervisor.cli.views.query_view import csv_text
    from guardrun.supervisor.query.bounds import FailedError, RefusedError

    run_dir = scope.find(given.run)
    call, out = _call(scope, run_dir, rows=given.rows, timeout=given.seconds)
    try:
        told = query.make_query(call, run_dir, read_run(run_dir)).answer(given.sql)
    except RefusedError as error:
        return _refusal("query: refused.", str(error), ["next: tables has what can be read"])
    except FailedError as error:
        return _refusal("query: it failed.", str(error).replace("--timeout", "seconds"))
    out.text(csv_text(told.answer))
    out.asides += told.notes
    rows = len(told.answer.rows)
    more = "; there are more: LIMIT, WHERE and aggregates say which" if told.answer.is_cut else ""
    return _answer(f"query: {rows} row{'' if rows == 1 else 's'} as CSV{more}.", out)


def _refusal(said: str, why: str, following: list[str] | None = None) -> Answer:
    lines, _ = quote([why])
    return Answer(said=said, lines=lines, next=following or [], is_error=True)


def _tables(scope: Scope, given: to.TablesArguments) -> Answer:
    from guardrun.supervisor.cli.views.query_view import print_schema
    from guardrun.supervisor.query.run_query import TABLES
    from guardrun.supervisor.query.table import by_name

    out = Quoting(scope.environ)
    known = by_name(TABLES)
    if given.table and given.table not in known:
        names = ", ".join(table.name for table in TABLES)
        return Answer(said=f"tables: there is no such table; there are: {names}", is_error=True)
    print_schema(out, (known[given.table],) if given.table else TABLES)
    lines, _ = quote([out.file.getvalue().partition("guardctl query --schema")[0]], mark="")
    following = [] if given.table else ['next: tables {"table": "steps"} says what each column is']
    return Answer(said="tables: what query can read.", lines=lines, next=following)


def _compare(scope: Scope, given: to.CompareArguments) -> Answer:
    out = Quoting(scope.environ)
    a, b, found = compare.compare_folders(scope.find(given.a), scope.find(given.b), scope.node())
    compare.print_comparison(out, a, b, found)
    count = len(found.differences)
    return _answer(f"compare: {count} difference{'' if count == 1 else 's'}, most telling first.", out)


def _inspect(scope: Scope, given: to.InspectArguments) -> Answer:
    call, out = _call(scope, scope.find(given.run), ranks=given.ranks, seconds=given.seconds)
    code = inspect.VERB.run(call)
    return _answer("inspect: what ranks told." if code == OK else "inspect: no rank told anything.", out)


def _trace_show(scope: Scope, given: to.TraceShowArguments) -> Answer:
    run_dir = scope.find(given.run)
    call, out = _call(scope, run_dir, action="show", ranks=sorted(set(given.ranks)) or None, top=given.top)
    trace.VERB.run(call)
    return _answer("trace_show: the last trace.", out)


# What changes a run -------------------------------------------------------------------------------------------------


def _trace_on(scope: Scope, given: to.TraceOnArguments) -> Answer:
    run_dir, ranks = scope.find_named(given.run), sorted(set(given.ranks)) or None
    call, out = _call(scope, run_dir, action="on", ranks=ranks, steps=given.steps, seconds=given.seconds, top=given.top)
    code = trace.VERB.run(call)
    out.asides.clear()  # what is going to be done
    if code != OK:
        return _answer("trace_on: nothing was traced.", out)
    return _answer("trace_on: it has ended by itself.", out, ["next: trace_show has it again"])


def _trace_off(scope: Scope, given: to.NamedRunArguments) -> Answer:
    call, out = _call(scope, scope.find_named(given.run), action="off", ranks=None)
    code = trace.VERB.run(call)
    return _answer("trace_off: asked." if code == OK else "trace_off: there was nothing to stop.", out)


def _order(verb: str, done: str) -> Callable[[Scope, to.NamedRunArguments], Answer]:
    def run(scope: Scope, given: to.NamedRunArguments) -> Answer:
        call, out = _call(scope, scope.find_named(given.run))
        data = ask_run(call, verb, {"who": who_asks(call)})
        if data.get("text"):
            out.line(str(data["text"]))
        return _answer(f"{verb}: {done}.", out, ["next: status says what has become of it"])

    return run


DO: dict[str, Callable[[Scope, Any], Answer]] = {
    "runs": _runs,
    "status": _status,
    "incidents": _incidents,
    "show": _show,
    "diagnose": _diagnose,
    "stacks": _stacks,
    "query": _query,
    "tables": _tables,
    "compare": _compare,
    "inspect": _inspect,
    "trace_show": _trace_show,
    "trace_on": _trace_on,
    "trace_off": _trace_off,
    "hold": _order("hold", "asked: guardrun watches, and changes nothing until unhold"),
    "unhold": _order("unhold", "asked: guardrun acts again"),
    "restart": _order("restart", "asked: this attempt ends, and the next goes on from the newest checkpoint"),
    "checkpoint": _order("checkpoint", "asked: each rank's next should_checkpoint() says yes"),
}


def answer(scope: Scope, name: str, arguments: Any) -> Answer:
    """What a tool finds out. arguments: of its struct. Never raises for what the run does."""
    try:
        return DO[name](scope, msgspec.convert(arguments, known_type(to.BY_NAME[name].arguments)))
    except CtlError as error:
        return _refusal(f"{name}: no answer.", str(error))
    except OSError as error:
        why = f"{error.filename or 'a file'}: {error.strerror or error}"
        return _refusal(f"{name}: something can't be read.", why)
    except (MemoryError, RecursionError):
        return Answer(said=f"{name}: it takes more memory than there is for one answer: ask for less.", is_error=True)
    except Exception as error:
        # A run that is none of ours, or a bug: the server goes on, and its log says where.
        for part in traceback.format_exception(error):
            sys.stderr.write(make_harmless(part))
        return _refusal(f"{name}: it failed.", f"{type(error).__name__}: {error}")
