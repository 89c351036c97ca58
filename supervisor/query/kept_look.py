"""The newest look at its ranks that a run has kept: in its journal, else in files; else where its ranks raised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.stack_grouping import MAIN, Stack
from guardrun.supervisor.query.journal_reader import Entry
from guardrun.supervisor.query.look_tables import Looked
from guardrun.supervisor.query.table import Row
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.report.elements.stored_stacks import iterate_stacks
from guardrun.supervisor.report.incident import STACKS, incident_folders
from guardrun.supervisor.rundir.run_directory import RunFile

LOOKS = "looks"


class StoredStacks:
    """The stacks that a look has left in files: read anew each time, one file after the other; false where none is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Stack]:
        return iterate_stacks(self._folder)

    def __bool__(self) -> bool:
        return any(True for _ in self)


class Kept(NamedTuple):
    """A look, and what it is, in words: `the look of incident 003, 2026-11-20T14:02:11Z`."""

    looked: Looked
    words: str
    time: str
    """UTC."""
    incident: str = ""


class NewestLook:
    """Notes, while the journal is read, what is needed to find it. Adds no rows."""

    kinds = frozenset({"look_taken", "attempt_started", "exits_read", "rank_raised"})

    def __init__(self) -> None:
        self._ranks: dict[int, ev.Rank] = {}
        """Of the attempt that has begun last."""
        self._look: Entry | None = None
        self._looked_at: dict[int, ev.Rank] = {}
        self._errors: dict[int, tuple[int, float, ev.ErrorRecord]] = {}
        """Of the last attempt that had any: rank → its pid, when, what."""
        self._errors_of = -1
        self._incidents: dict[str, str] = {}
        """Folder of a look → the incident that has it."""

    def rows(self, entry: Entry) -> Iterator[Row]:
        """As Builder has it."""
        if entry.kind == "look_taken":
            self._look, self._looked_at = entry, self._ranks
        elif isinstance(event := entry.event, ev.AttemptStarted):
            self._ranks = {rank.global_rank: rank for rank in event.ranks}
        elif isinstance(event, ev.UncaughtExceptionReported):
            self._note_error(event.attempt, event.global_rank, entry.at_s, event.error)
        else:
            for trace in event.traces:
                if trace.error is not None:
                    self._note_error(event.attempt, trace.global_rank, entry.at_s, trace.error)
        yield from ()

    def _note_error(self, attempt: int, rank: int, at_s: float, error: ev.ErrorRecord) -> None:
        if attempt != self._errors_of:
            self._errors, self._errors_of = {}, attempt
        known = self._ranks.get(rank)
        if error.frames or rank not in self._errors:
            self._errors[rank] = (known.pid if known is not None else 0, at_s, error)

    def note_incidents(self, entry: Entry) -> None:
        """Any event may have led to one that takes a look up."""
        for action in entry.actions_of("write_incident"):
            incident = action["incident"]
            for folder in incident.get("looks", ()):
                self._incidents[str(folder)] = str(incident["id"])

    def last(self) -> Iterator[Row]:
        """As Builder has it."""
        return iter(())

    def find(self, run_dir: Path, run: RunFile) -> Kept | None:
        """The look; None where nothing was kept."""
        return self._of_journal(run) or _of_files(run_dir) or self._of_errors(run)

    def _of_journal(self, run: RunFile) -> Kept | None:
        if self._look is None:
            return None
        event: ev.LookTaken = self._look.event
        at_s = min((look.at_s for look in event.ranks), default=self._look.at_s)
        nodes = {number: rank.node for number, rank in self._looked_at.items()}
        incident = self._incidents.get(event.folder, "")
        of = f"of incident {incident}" if incident else f"{event.look} of attempt {event.attempt}"
        time = _seconds(run.date_s(at_s))
        return Kept(Looked(event.ranks, [], nodes, event.attempt), f"the look {of}, {time}", time, incident)

    def _of_errors(self, run: RunFile) -> Kept | None:
        stacks, at_s = [], 0.0
        for rank, (pid, told_s, error) in sorted(self._errors.items()):
            frames = [Frame(function, file, line) for file, function, line in reversed(error.frames)]
            if frames:
                stacks.append(Stack(rank=rank, pid=pid, kind=MAIN, frames=frames))
                at_s = max(at_s, told_s)
        if not stacks:
            return None
        time = _seconds(run.date_s(at_s))
        return Kept(Looked(stacks=stacks), f"the exceptions that ended ranks, {time}", time)


def _of_files(run_dir: Path) -> Kept | None:
    """What an incident, else a look that none has taken up, has left in files."""
    for folder in reversed(incident_folders(run_dir)):
        if stacks := StoredStacks(folder / STACKS):
            time, incident = _changed(folder / STACKS), folder.name.partition("-")[0]
            return Kept(Looked(stacks=stacks), f"the look of incident {incident}, {time}", time, incident)
    try:
        folders = [path for path in (run_dir / LOOKS).iterdir() if not path.is_symlink() and path.is_dir()]
        looks = sorted((path.stat().st_mtime, path) for path in folders)
    except OSError:
        looks = []
    for _, folder in reversed(looks):
        if stacks := StoredStacks(folder):
            time = _changed(folder)
            return Kept(Looked(stacks=stacks), f"the look {folder.name}, {time}", time)
    return None


def _changed(path: Path) -> str:
    try:
        return _seconds(path.stat().st_mtime)
    except OSError:
        return "nobody knows when"


def _seconds(wall_s: float) -> str:
    try:
        return iso_time(wall_s).partition(".")[0] + "Z"
    except (ValueError, OverflowError, OSError):
        return "nobody knows when"
