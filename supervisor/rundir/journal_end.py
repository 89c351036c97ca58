"""How far a run's journal got, and how it began: all the launcher needs of it to continue the run."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.base.own_files import open_own

TAIL_BYTES = 256 * 1024
JOURNAL = "events.jsonl"
KEPT = 4
"""Older files of it: events.jsonl.1, the newest of them, to .4 (supervisor/rundir/journal.py)."""
_SESSION = re.compile(rb'(?<!\\)"session":(\d{1,6})\b')


class Began(NamedTuple):
    """What run.json says of a run's sessions."""

    session: int
    """The last one's number."""
    wall_s: float
    """When the run was created."""


def parse_last_second(tail: bytes) -> float | None:
    """The engine's second (`t`) of the last whole line that has one. The last line may be torn, the first cut."""
    for line in reversed(tail.split(b"\n")):
        try:
            record = json.loads(line)
            return float(record["t"])
        except (ValueError, TypeError, KeyError):
            continue
    return None


def read_last_second(run_dir: Path) -> float:
    """The engine's second of the journal's last line, in the newest file that has one; 0 where there is none."""
    for name in (JOURNAL, f"{JOURNAL}.1"):
        try:
            with open(open_own(run_dir / name), "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                second = parse_last_second(file.read())
        except OSError:
            continue
        if second is not None:
            return second
    return 0.0


def read_end(run_dir: Path) -> tuple[str, bool]:
    """How the run ended by what the journal itself says, and whether it may be gone on with all the same.

    Empty where it has no end, or a guardrun went on behind it. For a journal that cannot be replayed.
    """
    end = "", False
    for name in (f"{JOURNAL}.1", JOURNAL):
        with suppress(OSError), open(open_own(run_dir / name), "rb") as file:
            for line in file:
                if b'"finish_run"' in line or b'"run_' in line:
                    end = parse_end(line, end)
    return end


def parse_end(line: bytes, before: tuple[str, bool]) -> tuple[str, bool]:
    """The same after one line more."""
    try:
        record = json.loads(line)
        if record["event"]["type"] in ("run_opened", "run_continued"):
            return "", False
        summary = next(one["summary"] for one in record["actions"] if one["type"] == "finish_run")
        return str(summary["outcome"]), summary.get("may_go_on") is True
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return before


def read_began(run_dir: Path, now_wall_s: float) -> Began:
    """The same by the journal alone, where run.json was lost; where that has no date, by the oldest file of the run."""
    session, wall_s = 0, None
    for name in (*(f"{JOURNAL}.{number}" for number in range(KEPT, 0, -1)), JOURNAL):
        try:
            with open(open_own(run_dir / name), "rb") as file:
                for line in file:
                    session = max(session, *map(int, _SESSION.findall(line)), 0)
                    wall_s = parse_beginning(line) if wall_s is None else wall_s
        except OSError:
            continue
    return Began(session, min(_oldest_s(run_dir) if wall_s is None else wall_s, now_wall_s))


def _oldest_s(run_dir: Path) -> float:
    """The run is no younger: what it saved must not be taken for older than the run."""
    times = []
    with suppress(OSError), os.scandir(run_dir) as entries:
        for entry in entries:
            with suppress(OSError):
                times.append(entry.stat(follow_symlinks=False).st_mtime)
    return min(times, default=math.inf)


def parse_beginning(line: bytes) -> float | None:
    """When the engine's clock stood at 0, by a line that has both clocks."""
    try:
        record = json.loads(line)
        return datetime.fromisoformat(record["wall"].replace("Z", "+00:00")).timestamp() - float(record["t"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
