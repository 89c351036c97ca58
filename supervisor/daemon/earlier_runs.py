"""What earlier runs in the same run folder have left: read once, beside everything else.

Bounded, because a run folder may hold years of runs, on a file system that is slow or gone: the newest runs only, small
files only, a little time only, and in a thread of its own that nobody waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model.events import HistoryLoaded, PastPlace
from guardrun.supervisor.engine.state.incidents import is_in_code
from guardrun.supervisor.engine.state.state import IGNORES, OPENS
from guardrun.supervisor.rundir.run_directory import list_runs

MAX_RUNS = 200
MAX_FILE_BYTES = 1 << 20
MAX_PLACES = 500
TIME_LIMIT_S = 2.0
LONGEST_S = 30 * 86400.0
"""Longer than any stall: what says so is broken."""


class _Evidence(msgspec.Struct):
    place: str = ""


class _Record(msgspec.Struct):
    """Of an incident.json, what recurrence needs."""

    evidence: _Evidence
    detected: str = ""


class _Stall(msgspec.Struct):
    place: str = ""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)] = 0.0


class _Summary(msgspec.Struct):
    stalls: list[_Stall] = []
    resumes: str = ""


class _Run(msgspec.Struct):
    """Of a run.json, what tells whether it ran the same."""

    script: list[str]
    cwd: str
    created_wall_s: float


T = TypeVar("T")
_DECODER = msgspec.json.Decoder(known_type(_Record))
_SUMMARY = msgspec.json.Decoder(known_type(_Summary))
_RUN = msgspec.json.Decoder(known_type(_Run))


def read_past(run_dir: Path, limit_s: float = TIME_LIMIT_S) -> HistoryLoaded:
    """What the runs beside this one have left, the newest first, as far as there is time."""
    deadline = time.monotonic() + limit_s
    own = run_dir.resolve()
    me = _decoded(own / "run.json", _RUN)
    found: dict[str, tuple[int, str]] = {}
    longest: dict[str, float] = {}
    resumes = ""
    mine = own.stat()
    for run in [run for run in list_runs(own.parent) if run.resolve() != own and _is_as_own(run, mine)][:MAX_RUNS]:
        if time.monotonic() > deadline:
            break
        for place, day in _places_of(run).items():
            runs, last = found.get(place, (0, ""))
            found[place] = (runs + 1, max(last, day))
        summary = _decoded(run / "summary.json", _SUMMARY)
        if summary is None:
            continue
        for stall in summary.stalls:
            if stall.place and stall.seconds > longest.get(stall.place, 0.0) and len(longest) < MAX_PLACES:
                longest[stall.place] = stall.seconds
        if not resumes and summary.resumes in (OPENS, IGNORES) and me is not None and _ran_the_same(run, me):
            resumes = summary.resumes
    places = [PastPlace(place=place, runs=runs, last=last) for place, (runs, last) in found.items()]
    places = sorted(places, key=lambda one: (-one.runs, one.place))[:MAX_PLACES]
    return HistoryLoaded(places=places, stalls=longest, resumes=resumes)


def _is_as_own(run: Path, mine: os.stat_result) -> bool:
    """Whether a run is as much this user's as their own: what others say of a place changes nobody's patience."""
    other = run.lstat()
    return other.st_uid == mine.st_uid and not other.st_mode & 0o022 & ~mine.st_mode


def _ran_the_same(run: Path, me: _Run) -> bool:
    """Whether it had the same script, which has not been changed since, with the same arguments in the same folder."""
    other = _decoded(run / "run.json", _RUN)
    if other is None or (other.script, other.cwd) != (me.script, me.cwd):
        return False
    files = [path for word in me.script if word.endswith((".py", ".sh")) and (path := Path(me.cwd, word)).is_file()]
    return all(path.stat().st_mtime < other.created_wall_s for path in files)


def _places_of(run: Path) -> dict[str, str]:
    """Each place of a run's incidents, and the day when it was last seen there."""
    places: dict[str, str] = {}
    for path in run.glob("incidents/*/incident.json"):
        record = _decoded(path, _DECODER)
        if record is None:
            continue
        place, day = record.evidence.place, record.detected[:10]
        if is_in_code(place):
            places[place] = max(places.get(place, ""), day)
    return places


def _decoded(path: Path, decoder: msgspec.json.Decoder[T]) -> T | None:
    """None where it is not there, too large, torn, or written by another version: it has nothing to tell then."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        return decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def start_reading(run_dir: Path, read: Callable[[HistoryLoaded], object]) -> None:
    """Have a thread read the past; read: called by it where there is anything."""

    def work() -> None:
        try:
            past = read_past(run_dir)
        except OSError as error:
            log.warning("past_not_read", error=str(error))
            return
        if past.places or past.stalls or past.resumes:
            read(past)

    threading.Thread(target=work, name="guardrun-past", daemon=True).start()
