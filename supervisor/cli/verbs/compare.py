"""`guardctl compare`: two runs side by side, and what differs between them, most telling first."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.cli.base.verb import (
    OK,
    Call,
    CtlError,
    Verb,
    find_run,
    guard_dir,
    is_alive,
    read_run,
    this_node,
    write_page,
)

if TYPE_CHECKING:
    from guardrun.supervisor.report.comparison.differences import Comparison
    from guardrun.supervisor.report.comparison.run_facts import RunFacts

MAX_POINTS = 2000
"""Of each curve, with --json."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="RUN", help="a run's id or its folder, or latest")
    parser.add_argument("b", metavar="RUN", help="the other one's; a folder may lie in another --guard-dir")
    parser.add_argument("--html", metavar="FILE", help="write a page, too, with both curves")


def _run(call: Call) -> int:
    directory = guard_dir(call.arguments.guard_dir, call.environ, call.cwd)
    folders = [find_run(name, directory, call.cwd) for name in (call.arguments.a, call.arguments.b)]
    node = this_node(call.environ)
    a, b, found = compare_folders(folders[0], folders[1], node)
    path = call.cwd / call.arguments.html if call.arguments.html else None
    if path is not None:
        from guardrun.supervisor.report.comparison.comparison_page import comparison_html

        write_page(path, lambda: comparison_html(a, b, found))
    if call.out.is_json:
        told = msgspec.to_builtins(found, str_keys=True)
        call.out.json(_plain({"a": _data(a), "b": _data(b), **told, "page": str(path) if path else None}))
        return OK
    print_comparison(call.out, a, b, found)
    if path is not None:
        call.out.line(str(path))
    return OK


def compare_folders(first: Path, second: Path, node: str) -> tuple[RunFacts, RunFacts, Comparison]:
    """Two runs' facts, and what differs. node: this one's name. Raises CtlError."""
    # Of no use to guardctl's other verbs.
    from guardrun.supervisor.report.comparison.differences import compare_runs
    from guardrun.supervisor.report.comparison.read_run import read_facts

    if first == second:
        raise CtlError(f"both are the same run, {first}: name two")
    a, b = (read_facts(folder, run := read_run(folder), is_alive(run, node)) for folder in (first, second))
    if a.run_id == b.run_id:  # of two guard directories
        a.run_id, b.run_id = f"{a.run_id} (A)", f"{b.run_id} (B)"
    return a, b, compare_runs(a, b)


def _data(run: RunFacts) -> dict[str, Any]:
    """A run for programs: what of it can be shown side by side."""
    return {
        "run_id": run.run_id,
        "run_dir": run.run_dir,
        "state": run.state,
        "outcome": run.outcome or None,
        "last_step": run.last_step,
        "script": run.script,
        "world_size": run.first.world_size if run.first else None,
        "nodes": run.first.nodes if run.first else [],
        "attempts": len(run.attempts),
        "environments": msgspec.to_builtins(run.environments, str_keys=True),
        "curves": {name: thin_points(curve.points, MAX_POINTS) for name, curve in run.curves.items()},
        "missing": run.missing,
    }


def thin_points(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Fewer of them, evenly, and the last one."""
    every = -(-len(points) // most) if points else 1
    return [*points[: len(points) - 1 : every], *points[-1:]]


def _plain(value: Any) -> Any:
    """As JSON can say it: it has no numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_comparison(out: Output, a: RunFacts, b: RunFacts, found: Comparison) -> None:
    """Print it for a person."""
    from guardrun.supervisor.report.comparison.differences import KINDS

    for name, run in (("A", a), ("B", b)):
        step = f", step {run.last_step}" if run.last_step is not None else ""
        out.line(f"{name}: {run.run_id}  {run.outcome.replace('_', ' ') or run.state}{step}  {' '.join(run.script)}")
    out.line()
    for sentence in found.outcome:
        out.line(f"{sentence[0].upper()}{sentence[1:]}.", "bold")
    out.line("What differs, most telling first:" if found.differences else "Nothing that is known differs.")
    if found.differences:
        rows = [[KINDS[one.kind], one.what, one.a, one.b, one.note] for one in found.differences]
        out.table(["Of", "What", "A", "B", "Note"], rows)
    for heading, said in (("The same", found.same), ("Not known", found.unknown)):
        if said:
            out.line(f"{heading}: {'; '.join(said)}.")
    for run in (a, b):
        for words in run.missing:
            out.line(f"Not read of {run.run_id}: {words}.", "yellow")


VERB = Verb("compare", "two runs side by side: what differs between them, most telling first", _add_arguments, _run)
