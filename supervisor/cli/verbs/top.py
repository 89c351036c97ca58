"""`guardctl top`: a run on a terminal as it goes, drawn by textual, which is an extra; without it, `status --watch`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import msgspec

from guardrun.supervisor.cli.base.verb import OK, Call, CtlError, Verb, find_run, guard_dir, seconds_up_to, this_node
from guardrun.supervisor.cli.verbs.status import watch

EXTRA = "the view needs textual (pip install 'guardrun[top]'): this is guardctl status --watch"
MAX_EVERY_S = 3600.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run's id or its folder (default: latest)")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=seconds_up_to(MAX_EVERY_S),
        default=2.0,
        help="how often to ask, once a second at most (default: 2)",
    )


def _run(call: Call) -> int:
    node = this_node(call.environ)
    directory = guard_dir(call.arguments.guard_dir, call.environ, call.cwd)
    run_dir = find_run(call.arguments.run or "latest", directory, call.cwd)
    if call.out.is_json:
        return _print_once(call, run_dir, node)
    if not call.out.is_terminal or not sys.stdin.isatty():
        raise CtlError("guardctl top draws on a terminal, and this is none: use guardctl status --watch, or top --json")
    why = why_plain(call)
    if why:
        call.out.aside(why)
        return watch(call.out, run_dir, node, call.arguments.every)
    return _show(call, directory, run_dir, node)


def why_plain(call: Call) -> str:
    """Why it is status --watch instead; empty where it is not."""
    if importlib.util.find_spec("textual") is None:
        return EXTRA
    if call.environ.get("TERM", "") in ("", "dumb"):
        return "this terminal can't be drawn on (TERM): this is guardctl status --watch"
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        return f"this terminal's text is {sys.stdout.encoding}, and no UTF-8: this is guardctl status --watch"
    return ""


def _print_once(call: Call, run_dir: Path, node: str) -> int:
    """What would be shown, once, as data."""
    from guardrun.supervisor.cli.base.watching import RunWatch

    view = RunWatch(run_dir, node).look(call.arguments.every).view
    call.out.json(msgspec.to_builtins(view))
    return OK


def _show(call: Call, directory: Path, run_dir: Path, node: str) -> int:
    from guardrun.supervisor.cli.top.app import TopApp
    from guardrun.supervisor.cli.top.run_list import find_runs

    chooses = call.arguments.run is None and sum(run.is_alive is True for run in find_runs(directory, node)) > 1
    app = TopApp(
        run_dir,
        node=node,
        every_s=call.arguments.every,
        environ=dict(call.environ),
        list_runs=lambda: find_runs(directory, node),
        chooses=chooses,
    )
    # Shells export the size that a terminal had once: textual would keep to it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    app.run(mouse=False)
    return app.return_code or OK


VERB = Verb("top", "a run on the terminal as it goes: ranks, curves, where time goes, incidents", _add_arguments, _run)
