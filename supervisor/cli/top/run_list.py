"""The runs of a folder, as a list to choose from."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.cli.base.output import clean
from guardrun.supervisor.cli.base.verb import CtlError, is_alive, read_run
from guardrun.supervisor.cli.top.lines import BOLD, DIM, GOOD, Line, Piece
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.rundir.run_directory import list_runs

MAX_RUNS = 200


class ListedRun(NamedTuple):
    """One of them."""

    run_dir: Path
    run_id: str
    node: str
    is_alive: bool | None
    """None: it is led by another node."""
    is_ended: bool
    """It has a summary."""
    created_s: float
    """Seconds since the epoch."""


def find_runs(directory: Path, node: str) -> list[ListedRun]:
    """The newest, those of other users left out. node: the name of this one."""
    found = []
    for run_dir in list_runs(directory)[:MAX_RUNS]:
        try:
            run = read_run(run_dir)
        except CtlError:
            continue
        is_ended = (run_dir / "summary.json").is_file()
        found.append(ListedRun(run_dir, run.run_id, run.node, is_alive(run, node), is_ended, run.created_wall_s))
    return found


def run_line(run: ListedRun, wall: Callable[[], float] = time.time) -> Line:
    """As the list shows it."""
    state, style = ("over", DIM) if run.is_ended else ("alive", GOOD) if run.is_alive else ("unfinished", BOLD)
    if run.is_alive is None and not run.is_ended:
        state = "elsewhere"
    ago = duration(max(0.0, wall() - run.created_s))
    where = f"  on {clean(run.node)}, begun {ago} ago"
    return [Piece(f" {state:<11}", style), Piece(clean(run.run_id)), Piece(where, DIM)]
