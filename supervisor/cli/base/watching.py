"""One run, watched: each look asks its supervisor once, reads what is new in its journal, and folds both into a view.

A look costs the supervisor one `status`, and whoever looks waits twenty times as long as that took before the next one,
so that it has a twentieth of the supervisor's time at most, whatever the number of ranks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from guardrun.supervisor.cli.base.status_reader import ask_status, read_recorded_status
from guardrun.supervisor.cli.base.verb import CtlError, is_alive, read_run
from guardrun.supervisor.client.supervisor_client import Unreachable
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.report.incident import incident_folders
from guardrun.supervisor.report.run_record import read_json
from guardrun.supervisor.rundir.journal_end import JOURNAL
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.watch.journal_tail import JournalTail
from guardrun.supervisor.watch.run_series import RunSeries
from guardrun.supervisor.watch.run_status import Culprit, RunStatus, parse_status
from guardrun.supervisor.watch.run_view import RunView, make_view

LEAST_S = 1.0
"""Between two questions to a supervisor, at least."""
TIMES, MOST_S = 20.0, 15.0
"""How many times as long as an answer took is waited before the next question, and how long at most."""
INCIDENT_BYTES = 16 << 20
"""Of incident.json at most."""
SILENT_S = 30.0
"""Between two readings of a folder whose supervisor does not answer."""


class Looked(NamedTuple):
    """One look at a run."""

    view: RunView
    at_s: float
    """When what it shows of ranks was so; monotonic."""
    next_in_s: float
    """How long to wait before the next look, at least."""


class RunWatch:
    """Looks at one run, as often as somebody wants; one thread at a time."""

    def __init__(self, run_dir: Path, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        """node: the name of this one."""
        self.run_dir = run_dir
        self._node, self._clock = node, clock
        self._tail = JournalTail(run_dir)
        self.series = RunSeries()
        """What the last look had of the journal, …"""
        self._status: RunStatus | None = None
        self._source = "directory"
        self._why = ""
        self._at_s = 0.0
        self._read_s = -math.inf
        """When the folder was last read as a whole, …"""
        self._culprits: tuple[str, list[int]] = "", []
        """Of which incident, and their ranks."""
        self._stamp: object = None
        """… and what it was like then."""

    @property
    def status(self) -> RunStatus | None:
        """… and of the supervisor."""
        return self._status

    def look(self, every_s: float, window_s: float = math.inf) -> Looked:
        """Look once. every_s: how often somebody wants to. Raises CtlError where there is no run any more."""
        run = read_run(self.run_dir)
        alive = is_alive(run, self._node)
        notes = self._follow()
        began_s = self._clock()
        trouble = "the run is over" if alive is False else self._ask(run)
        if trouble:
            self._go_by_folder(run, alive, trouble)
        took_s = self._clock() - began_s
        assert self._status is not None
        why = self._why
        if trouble and self._source == "supervisor":
            self._status.state = "unreachable"
            why = f"{trouble}; ranks as they were {duration(self._clock() - self._at_s)} ago"
        view = make_view(self._status, self.series, source=self._source, why=why, window_s=window_s, notes=notes)
        pause_s = 0.0 if trouble else min(TIMES * took_s, MOST_S)
        return Looked(view, self._at_s, max(LEAST_S, every_s, pause_s))

    def _follow(self) -> list[str]:
        """Read on in the journal. Answers what there is to say of it."""
        skipped = self._tail.skipped_bytes
        try:
            self.series.feed(self._tail.read())
        except OSError as error:
            return [f"the journal can't be read: {error.strerror or error}"]
        left_out = self._tail.skipped_bytes - skipped
        return [f"{left_out / 1e6:,.1f} MB of the journal were passed over: too much at once"] if left_out else []

    def _ask(self, run: RunFile) -> str:
        """Ask the supervisor. Answers why it has not told, empty where it has."""
        try:
            self._status = parse_status(ask_status(run, self.run_dir))
        except Unreachable as error:
            return str(error)
        except ValueError as error:
            return f"its answer is not one of this version of guardrun ({error})"
        self._source, self._why, self._at_s = "supervisor", "", self._clock()
        self._name_culprits(self._status)
        return ""

    def _name_culprits(self, status: RunStatus) -> None:
        """Of the newest incident, from its file, which is read once."""
        if not status.incidents:
            return
        last = status.incidents[-1]
        if self._culprits[0] != last.id:
            folders = {folder.name.partition("-")[0]: folder for folder in incident_folders(self.run_dir)}
            folder = folders.get(last.id)
            record = read_json(folder / "incident.json", INCIDENT_BYTES) if folder is not None else None
            named = (record or {}).get("culprits")
            ranks = [one.get("rank") for one in named if isinstance(one, dict)] if isinstance(named, list) else []
            self._culprits = last.id if record else "", [rank for rank in ranks if isinstance(rank, int)]
        last.culprits = [Culprit(rank=rank) for rank in self._culprits[1]]

    def _go_by_folder(self, run: RunFile, alive: bool | None, trouble: str) -> None:
        """What was known stays, where the supervisor may come back; else what the folder says. Raises CtlError."""
        is_over = alive is False or (alive is None and (self.run_dir / "summary.json").is_file())
        if self._source == "supervisor" and self._status is not None and not is_over:
            return
        stamp = (run, is_over, stamp_of(self.run_dir / JOURNAL, self.run_dir / "summary.json"))
        is_due = self._clock() - self._read_s >= SILENT_S
        is_known = self._status is not None and self._source == "directory"
        if is_known and (stamp == self._stamp or not (is_over or is_due)):
            return
        data: dict[str, Any] = read_recorded_status(self.run_dir, run, alive, trouble)
        try:
            self._status = parse_status(data)
        except ValueError as error:
            raise CtlError(f"{self.run_dir}: what it holds is not of this version of guardrun ({error})") from None
        self._source, self._why = "directory", str(data["why"])
        self._stamp, self._read_s, self._at_s = stamp, self._clock(), self._clock()


def stamp_of(*paths: Path) -> tuple[tuple[int, int, int], ...]:
    """What changes when one of these files does."""

    def of(path: Path) -> tuple[int, int, int]:
        try:
            found = os.stat(path)
        except OSError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_size, found.st_ino

    return tuple(of(path) for path in paths)
