"""What earlier runs in the same run folder have left about incidents: read once, beside everything else.

Bounded, because a run folder may hold years of runs, on a file system that is slow or gone: the newest runs only, small
files only, a little time only, and in a thread of its own that nobody waits for.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from guardrun.supervisor.core.events import PastPlace, PastRead
from guardrun.supervisor.core.recurrence import is_in_code
from guardrun.supervisor.log import log
from guardrun.supervisor.rundir import list_runs

if TYPE_CHECKING:
    from guardrun.supervisor.daemon import Daemon

MAX_RUNS = 200
MAX_FILE_BYTES = 1 << 20
MAX_PLACES = 500
TIME_LIMIT_S = 2.0


class _Evidence(msgspec.Struct):
    place: str = ""


class _Record(msgspec.Struct):
    """Of an incident.json, what recurrence needs."""

    evidence: _Evidence
    detected: str = ""


_DECODER = msgspec.json.Decoder(_Record)


def read_past(run_dir: Path, limit_s: float = TIME_LIMIT_S) -> list[PastPlace]:
    """The places of incidents in the runs beside this one, those seen in most runs first."""
    deadline = time.monotonic() + limit_s
    own = run_dir.resolve()
    found: dict[str, tuple[int, str]] = {}
    for run in [run for run in list_runs(own.parent) if run.resolve() != own][:MAX_RUNS]:
        if time.monotonic() > deadline:
            break
        for place, day in _places_of(run).items():
            runs, last = found.get(place, (0, ""))
            found[place] = (runs + 1, max(last, day))
    places = [PastPlace(place=place, runs=runs, last=last) for place, (runs, last) in found.items()]
    return sorted(places, key=lambda one: (-one.runs, one.place))[:MAX_PLACES]


def _places_of(run: Path) -> dict[str, str]:
    """Each place of a run's incidents, and the day when it was last seen there."""
    places: dict[str, str] = {}
    for path in run.glob("incidents/*/incident.json"):
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                continue
            record = _DECODER.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # written by another version, or torn: it has nothing to tell
        place, day = record.evidence.place, record.detected[:10]
        if is_in_code(place):
            places[place] = max(places.get(place, ""), day)
    return places


def start_reading(daemon: Daemon) -> None:
    """Have a thread read the past and tell the engine."""

    def work() -> None:
        try:
            places = read_past(daemon.run_dir)
        except OSError as error:
            log.warning("past_not_read", error=str(error))
            return
        if places and not daemon.is_over:
            daemon.post(lambda: daemon.feed(PastRead(places=places)))

    threading.Thread(target=work, name="guardrun-past", daemon=True).start()
