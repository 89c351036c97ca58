"""The runs of a folder, a card each: living ones are asked, of others the folder is read, and again when it changes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from guardrun.supervisor.cli.base.status_reader import ask_status
from guardrun.supervisor.cli.base.verb import CtlError, is_alive, read_run
from guardrun.supervisor.cli.base.watching import MOST_S, TIMES, stamp_of
from guardrun.supervisor.cli.web.incident_shelf import IncidentShelf
from guardrun.supervisor.client.supervisor_client import Unreachable
from guardrun.supervisor.report.run_record import read_json
from guardrun.supervisor.rundir.journal_end import JOURNAL
from guardrun.supervisor.rundir.run_directory import RUN_FILE, RunFile
from guardrun.supervisor.watch.journal_tail import JournalTail
from guardrun.supervisor.watch.run_series import RunSeries
from guardrun.supervisor.watch.run_status import parse_status
from guardrun.supervisor.watch.run_view import median_known

EVERY_S = 10.0
"""Between two questions to the supervisor of a run in the list."""
OVER_S = 5.0
TAIL_BYTES = 256 << 10
"""Of the journal of a run that is over, for its last loss."""
SUMMARY_BYTES = 16 << 20


class RunCard:
    """One run of the list; one thread at a time."""

    def __init__(self, run_dir: Path, node: str) -> None:
        self.run_dir, self._node = run_dir, node
        self._shelf = IncidentShelf(run_dir)
        self._stamp: object = None
        self.card: dict[str, Any] = {}
        """Empty: there is no run of this user's any more."""
        self.next_s = -math.inf

    def refresh(self) -> None:
        """Look, where it is due. Never raises."""
        try:
            self._refresh()
        except (CtlError, OSError):
            self.card, self._stamp = {}, None
            self.next_s = time.monotonic() + OVER_S
        except Exception as error:  # what no file of guardrun's has
            self.card = {"name": self.run_dir.name, "state": "unknown", "said": f"can't be shown: {error!r}"[:300]}
            self.next_s = time.monotonic() + OVER_S

    def _refresh(self) -> None:
        run = read_run(self.run_dir)
        alive = is_alive(run, self._node)
        began_s = time.monotonic()
        common = {
            "name": self.run_dir.name,
            "run_id": run.run_id,
            "node": run.node,
            "created": run.created_wall_s,
            "is_alive": alive,
        }
        if alive:
            self.card = {**common, **self._of_living(run)}
            took_s = time.monotonic() - began_s
            self.next_s = time.monotonic() + max(EVERY_S, min(TIMES * took_s, MOST_S))
            self._stamp = None
            return
        stamp = (run.session, alive, stamp_of(*(self.run_dir / name for name in (RUN_FILE, JOURNAL, "summary.json"))))
        if stamp != self._stamp:
            self.card, self._stamp = {**common, **self._of_folder(alive)}, stamp
        self.next_s = time.monotonic() + OVER_S

    def _of_living(self, run: RunFile) -> dict[str, Any]:
        try:
            status = parse_status(ask_status(run, self.run_dir))
        except (Unreachable, ValueError) as error:
            return {"state": "unreachable", "said": str(error), "at": None, **self._incidents()}
        steps = [rank.step for rank in status.ranks if rank.step is not None]
        return {
            "state": status.state,
            "said": str((status.stall or {}).get("summary") or ""),
            "at": time.time(),
            "step": max(steps, default=None),
            "loss": median_known([rank.loss for rank in status.ranks]),
            "goodput": status.goodput,
            "world_size": status.world_size,
            "uptime_s": status.uptime_s,
            **self._incidents(),
        }

    def _of_folder(self, alive: bool | None) -> dict[str, Any]:
        series = RunSeries()
        try:
            series.feed(JournalTail(self.run_dir, first_bytes=TAIL_BYTES).read())
        except OSError:
            pass  # the list says what else is known
        summary = read_json(self.run_dir / "summary.json", SUMMARY_BYTES) or {}
        losses = [span.loss for span in series.spans if span.loss is not None]
        outcome = summary.get("outcome")
        state = str(outcome) if outcome else "unfinished" if alive is False else "elsewhere"
        return {
            "state": state,
            "said": str(summary.get("reason") or "")[:1000],
            "at": None,
            "step": _number(summary.get("last_step")),
            "loss": losses[-1] if losses else None,
            "goodput": _number(summary.get("goodput")),
            "world_size": None,
            "uptime_s": _number(summary.get("wall_s")) or series.last_s or None,
            **self._incidents(),
        }

    def _incidents(self) -> dict[str, Any]:
        found = self._shelf.read()
        last = found[0] if found else None
        keys = ("id", "kind", "cause", "summary", "recovered")
        return {"incidents": len(found), "last_incident": {key: last.get(key) for key in keys} if last else None}


def _number(value: object) -> float | int | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
