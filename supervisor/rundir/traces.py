"""RUN/traces/NNN-rank-R.json: module times that a rank measured because a person asked for them (`guardctl trace`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import read_own, write_own

FOLDER = "traces"
MAX_BYTES = 64 << 20
MAX_ROWS = 50_000
"""Of a rank's answer."""
KEEP, KEEP_BYTES = 512, 256 << 20
"""Files of a run; the newest requests stay."""
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
    steps: list[tuple[int, float]] = []
    """Those that were traced from first to last, and seconds of each; rows may be of others, too."""
    is_cut: bool = False
    """It ended before as many steps as were asked for."""
    memory: str = ""
    """Whose `allocated` is: `device`, `host`."""
    compiled: list[str] = []
    """Modules that run as one piece; …"""
    compiled_count: int = 0
    """… and how many there are of them."""
    is_compiled: bool = False
    """It ended because something was compiled."""


def parse_rows(text: str, names: list[str], stages: list[str]) -> list[TraceRow]:
    """Rows as a rank writes them (hooks/examine/module_times.py): `step place stage nanoseconds bytes;…`.

    Raises ValueError, IndexError.
    """
    rows = []
    for line in text.split(";", MAX_ROWS)[:MAX_ROWS] if text else []:
        step, place, stage, took_ns, allocated = map(int, line.split())
        if min(place, stage, took_ns) < 0:
            raise ValueError(f"{line[:100]!r} is no row")
        rows.append(TraceRow(step, names[place], stages[stage], took_ns / 1e9, allocated))
    return rows


def next_number(run_dir: Path) -> int:
    """Of the next request."""
    return max((number for number, _, _ in _list(run_dir)), default=0) + 1


def prune_traces(run_dir: Path) -> None:
    """Let the oldest requests go where there are too many, or they take too much room. Raises OSError."""
    left, room = KEEP, KEEP_BYTES
    for _, _, name in reversed(_list(run_dir)):
        path = run_dir / FOLDER / name
        left, room = left - 1, room - path.lstat().st_size
        if left < 0 or room < 0:
            path.unlink(missing_ok=True)


def write_trace(run_dir: Path, trace: ModuleTrace) -> Path:
    """Keep one; returns where. Raises OSError."""
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{trace.number:03d}-rank-{trace.rank}.json"
    write_own(path, msgspec.json.encode(trace))
    return path


def read_traces(run_dir: Path, number: int | None = None) -> Iterator[ModuleTrace]:
    """What a run has kept, of one request or all, the oldest first. What cannot be read, or is none, is passed over."""
    for of, _, name in _list(run_dir):
        if number is not None and of != number:
            continue
        try:
            yield msgspec.json.decode(read_own(run_dir / FOLDER / name, limit=MAX_BYTES), type=known_type(ModuleTrace))
        except (OSError, ValueError):
            continue


def read_newest(run_dir: Path) -> list[ModuleTrace]:
    """Those of the newest request of which anything can be read."""
    for number in sorted({number for number, _, _ in _list(run_dir)}, reverse=True):
        if found := list(read_traces(run_dir, number)):
            return found
    return []


def _list(run_dir: Path) -> list[tuple[int, int, str]]:
    """Number, rank and name of each file, the oldest request first."""
    try:
        names = [path.name for path in (run_dir / FOLDER).iterdir()]
    except OSError:
        names = []
    return sorted((int(m[1]), int(m[2]), m[0]) for m in map(_NAME.fullmatch, names) if m)
