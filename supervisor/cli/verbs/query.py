"""`guardctl query`: SQL over a run, live or over; read-only. SQLite is imported only when it is called."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardrun.supervisor.cli.base.verb import (
    NO,
    OK,
    USAGE,
    Call,
    CtlError,
    Verb,
    add_run_option,
    is_alive,
    named_run,
    read_run,
    seconds_up_to,
    this_node,
)
from guardrun.supervisor.client.supervisor_client import ask
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.wire.control_messages import Answer

if TYPE_CHECKING:
    from guardrun.supervisor.query.run_query import RunQuery
    from guardrun.supervisor.query.table import Table

ROWS, MAX_ROWS = 10_000, 1_000_000
SECONDS, MAX_SECONDS = 10.0, 3600.0
MAX_INPUT = 1 << 20
"""Characters of SQL that are read from stdin."""
_FORMATS = ("table", "json", "csv")
_HELP = ".schema [TABLE]  the tables, or one\n.examples  queries to begin with\n.quit  or Ctrl-D\nA query ends with ;"


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {MAX_ROWS:,}, not {text!r}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT (default: stdin, a prompt on a terminal)")
    add_run_option(parser)
    parser.add_argument("--format", choices=_FORMATS, default=_FORMATS[0], help="how rows are printed (default: table)")
    parser.add_argument("--schema", metavar="TABLE", nargs="?", const="", help="what tables there are, or what one has")
    parser.add_argument("--examples", action="store_true", help="queries to begin with")
    parser.add_argument("--rows", metavar="N", type=_rows, default=ROWS, help=f"at most (default: {ROWS:,})")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds_up_to(MAX_SECONDS),
        default=SECONDS,
        help=f"how long the query may take, and reading the run's files likewise (default: {SECONDS:g})",
    )


def _run(call: Call) -> int:
    arguments = call.arguments
    if arguments.format == "json":
        call.out.is_json = True
    try:
        import sqlite3  # noqa: F401
    except ImportError:
        raise CtlError("this Python was built without sqlite3, which queries are run by") from None
    if arguments.schema is not None:
        return _schema(call, arguments.schema)
    if arguments.examples:
        from guardrun.supervisor.cli.views.query_view import print_examples

        print_examples(call.out)
        return OK
    run_dir = named_run(call)
    read_run(run_dir)
    if arguments.sql is not None:
        return _answer(call, run_dir, arguments.sql)
    if sys.stdin.isatty() and call.out.is_terminal:
        return _prompt(call, run_dir)
    sql = sys.stdin.read(MAX_INPUT + 1)
    if len(sql) > MAX_INPUT:
        call.out.error(f"the query on stdin has more than {MAX_INPUT:,} characters")
        return USAGE
    return _answer(call, run_dir, sql)


def _schema(call: Call, name: str) -> int:
    from guardrun.supervisor.cli.views.query_view import print_schema
    from guardrun.supervisor.query.run_query import TABLES
    from guardrun.supervisor.query.table import by_name

    wanted: tuple[Table, ...] = TABLES
    if name:
        known = by_name(TABLES)
        if name not in known:
            call.out.error(f"no table {name}; there are: {', '.join(table.name for table in TABLES)}")
            return USAGE
        wanted = (known[name],)
    print_schema(call.out, wanted)
    return OK


def _answer(call: Call, run_dir: Path, sql: str) -> int:
    """Run one, and print what it gives. Raises KeyboardInterrupt."""
    from guardrun.supervisor.cli.views.query_view import about_run, print_answer
    from guardrun.supervisor.query.bounds import FailedError, RefusedError

    run = read_run(run_dir)
    try:
        told = make_query(call, run_dir, run).answer(sql)
    except RefusedError as error:
        call.out.error(str(error))
        return USAGE
    except FailedError as error:
        call.out.error(str(error))
        return NO
    form = "json" if call.out.is_json else call.arguments.format
    print_answer(call.out, form, told, about_run(run.run_id, run_dir))
    return OK


def make_query(call: Call, run_dir: Path, run: RunFile) -> RunQuery:
    """A query of this run, with the bounds of the command line (`rows`, `timeout`)."""
    from guardrun.supervisor.query.bounds import Bounds
    from guardrun.supervisor.query.run_query import RunQuery

    def ask_supervisor(verb: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        return ask(run, run_dir, verb, arguments, timeout_s)

    alive = is_alive(run, this_node(call.environ))
    # Whether it lives on another node cannot be seen from here.
    is_over = alive is False or (alive is None and (run_dir / "summary.json").is_file())
    bounds = Bounds(rows=call.arguments.rows, seconds=call.arguments.timeout)
    return RunQuery(run_dir, run, None if is_over else ask_supervisor, "the run is over", bounds)


def _prompt(call: Call, run_dir: Path) -> int:
    from guardrun.supervisor.cli.views.query_view import print_examples
    from guardrun.supervisor.query.prompt import Completer, Prompt, completion
    from guardrun.supervisor.query.run_query import TABLES

    def run(sql: str) -> None:
        try:
            _answer(call, run_dir, sql)
        except CtlError as error:
            call.out.error(str(error))
        except KeyboardInterrupt:
            call.out.aside("interrupted")

    def read(prompt: str) -> str:
        try:
            return input(prompt)
        except KeyboardInterrupt:
            call.out.line()  # what was being typed is left, and the next line begins
            raise

    commands = {
        ".schema": lambda rest: _ignore(_schema(call, rest)),
        ".examples": lambda _: print_examples(call.out),
        ".help": lambda _: call.out.line(_HELP),
    }
    prompt = Prompt(read, run, commands)
    call.out.line(f"Run {run_dir.name}. .help says what there is besides SQL.", "dim")
    with completion(Completer(TABLES, (*commands, ".quit")), lambda: prompt):
        prompt.loop()
    call.out.line()
    return OK


def _ignore(code: int) -> None:
    """At a prompt nobody waits for an exit code."""


VERB = Verb("query", "ask SQL of a run, live or over: its stacks, steps, metrics, memory, events", _add_arguments, _run)
