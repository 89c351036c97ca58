"""One run as the page shows it: looked at as `guardctl top` does, and made into documents that a browser is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.printable import encode_json, make_harmless_json
from guardrun.supervisor.cli.base.verb import CtlError, read_run
from guardrun.supervisor.cli.base.watching import RunWatch
from guardrun.supervisor.cli.web.incident_shelf import IncidentShelf
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.watch.node_view import fold_nodes
from guardrun.supervisor.watch.run_curves import COLUMNS, curve_columns, newer_columns

EVERY_S = 2.0
OVER_S = 15.0
"""Between two looks at a run that is over."""
AGAIN_S = 5.0
"""After a look that failed."""


def encode(data: Any) -> bytes:
    """JSON, with whatever texts in it."""
    return make_harmless_json(encode_json(data).decode()).encode()


class WatchedRun:
    """Looks at one run; `look` from one thread at a time, the rest from another one."""

    def __init__(self, run_dir: Path, node: str, acts: Callable[[], list[dict[str, Any]]]) -> None:
        """node: the name of this one. acts: what has been asked of the run here, for the document."""
        self.run_dir = run_dir
        self._acts = acts
        self._watch = RunWatch(run_dir, node)
        self._shelf = IncidentShelf(run_dir)
        self._at = 0.0
        self.nodes = encode({"nodes": None})
        self._curves: tuple[int, float, list[list[Any]]] = 0, 0.0, curve_columns([])

    def look(self) -> tuple[bytes, float]:
        """The run's document, and after how many seconds to look again."""
        try:
            return self._look()
        except CtlError as error:
            why = str(error)
        except OSError as error:
            why = f"{error.filename or self.run_dir}: {error.strerror or error}"
        except Exception as error:  # a mistake of ours, or what no file of guardrun's has: the page says so and lives
            why = f"the run can't be shown: {error!r}"[:500]
        return encode({"error": why, "acts": self._acts()}), AGAIN_S

    def _look(self) -> tuple[bytes, float]:
        looked = self._watch.look(EVERY_S)
        run = read_run(self.run_dir)
        at = time.time() - (time.monotonic() - looked.at_s)
        if abs(at - self._at) > 0.5:  # what has not changed shall read the same
            self._at = round(at, 1)
        view = msgspec.to_builtins(looked.view)
        for name in ("step_times", "losses", "incidents"):
            del view[name]
        series, status = self._watch.series, self._watch.status
        self._curves = series.folds, run.created_wall_s, curve_columns(series.spans)
        if status is not None:
            self.nodes = encode({"nodes": fold_nodes(status, series)})
        document = {
            "name": self.run_dir.name,
            "at": self._at,
            "view": view,
            "created": run.created_wall_s,
            "command": _command(run),
            "marks": [[run.date_s(mark.at_s), mark.kind, mark.text] for mark in series.marks],
            "incidents": self._shelf.read(),
            "acts": self._acts(),
        }
        return encode(document), max(OVER_S, looked.next_in_s) if looked.view.is_over else looked.next_in_s

    def curves(self, folds: int, since_s: float) -> bytes:
        """What is new since since_s of what had been folded so many times; all of it, where that has changed."""
        known, created_s, columns = self._curves
        is_whole = folds != known
        shown = columns if is_whole else newer_columns(columns, since_s)
        data = {"folds": known, "created": created_s, "is_whole": is_whole, "names": COLUMNS, "columns": shown}
        return encode(data)


def _command(run: RunFile) -> str:
    return " ".join(run.command)[:2000]
