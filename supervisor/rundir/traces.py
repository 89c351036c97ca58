"""RUN/traces/NNN-rank-R.json: module times that a rank measured because a person asked for them (`guardctl trace`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from guardrun.supervisor.base.own_files import read_own, write_own

FOLDER = "traces"
MAX_BYTES = 64 << 20
_NAME = re.compile(r"(\d{3,})-rank-(\d+)\.json")


class TraceRow(msgspec.Struct, array_like=True, frozen=True):
    """One pass through one module."""

    step: int
    """As the board counts steps."""
    module: str
    """Its name within the outermost module; empty: that one itself."""
    stage: str
    """`forward`, `backward`."""
    duration: float
    """Seconds on the host's clock."""
    allocated: int
    """Bytes at its end, of the device's allocator, or resident ones where no device is used; -1: not known."""


class ModuleTrace(msgspec.Struct, kw_only=True, frozen=True):
    """What one rank measured after one request."""

    schema: int = 1
    number: int
    """Of the request, from 1, in this run."""
    rank: int
    node: str
    attempt: int
    at_s: float
    """When it was answered, in the engine's seconds."""
    rows: list[TraceRow]
    left_out: int = 0
    """Rows that there was no room for."""


def write_trace(run_dir: Path, trace: ModuleTrace) -> Path:
    """Keep one; returns where. Raises OSError."""
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{trace.number:03d}-rank-{trace.rank}.json"
    write_own(path, msgspec.json.encode(trace))
    return path


def read_traces(run_dir: Path) -> Iterator[ModuleTrace]:
    """All that a run has kept, the oldest request first. What cannot be read, or is none, is passed over."""
    folder = run_dir / FOLDER
    names = sorted((int(m[1]), int(m[2]), m[0]) for m in map(_NAME.fullmatch, _names(folder)) if m)
    for _, _, name in names:
        try:
            yield msgspec.json.decode(read_own(folder / name, limit=MAX_BYTES), type=ModuleTrace)
        except (OSError, ValueError):
            continue


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
