"""RUN/profiles/NNN/: what torch's profiler has recorded of ranks because a person asked for it (`guardctl profile`).

rank-R.json.gz          the trace, for Perfetto or chrome://tracing; on the rank's node, where folders are not shared
rank-R.summary.json     what it comes to
profile.html            the page
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import read_own, write_own

FOLDER = "profiles"
PAGE = "profile.html"
KEEP, KEEP_BYTES = 16, 2 << 30
"""Requests of a run; the newest stays in any case."""
MAX_SUMMARY_BYTES = 48 << 10
"""Of a rank, on its way."""
_NUMBER = re.compile(r"\d{3,8}")
_SUMMARY = re.compile(r"rank-(\d{1,8})\.summary\.json")


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one operator, or kernel."""

    name: str
    kind: str
    """As supervisor/collect/profiles/kinds.py has it."""
    calls: int
    total_s: float
    """During which at least one was under way; on the host without what it called."""
    under: str = ""
    """The operator that launched it most."""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace comes to."""

    where: str
    """`device`: what ran there; `host`: no device was recorded."""
    device: str = ""
    """Its name."""
    window_s: float
    """What is looked at: from the first step to the end of the last."""
    parts: dict[str, float]
    """Seconds of it: `matmul`, `other`, `communication` (that nothing hides), `memory` (likewise), `idle`."""
    communication_s: float
    """All that was under way at any moment; …"""
    hidden_s: float
    """… and what of it was while something was computed."""
    operators: list[Operator]
    """The longest first."""
    operators_left_out: int = 0
    events: int
    trouble: str = ""
    """Why not all of the trace was read."""


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's profile comes to."""

    schema: int = 1
    number: int
    """Of the request, from 1, in this run."""
    rank: int
    node: str
    attempt: int
    at_s: float
    """When it was answered, in the engine's seconds."""
    steps: list[tuple[int, float]]
    """Those that were profiled, and seconds of each."""
    wanted: int
    plain_s: float
    """A step before, without the profiler."""
    held_s: tuple[float, float, float]
    """How long the rank was held up: to put the profiler on, to take it off, and to write the trace."""
    torch: str = ""
    unrecorded: str = ""
    """The kind of device that it trains on, where torch can't record that; empty: it can, or there is none."""
    why: str = ""
    """Why it ended earlier."""
    trace: str = ""
    """The trace's path within the run's folder on its rank's node; empty: there is none, …"""
    trace_folder: str = ""
    """That folder, which nodes may have each for itself."""
    trace_bytes: int = 0
    trace_trouble: str = ""
    """… for this reason."""
    breakdown: Breakdown

    @property
    def step_s(self) -> float:
        """The mean of the profiled ones."""
        return sum(seconds for _, seconds in self.steps) / len(self.steps)

    def per_step(self, seconds: float) -> float:
        """Of something in the window."""
        return seconds / len(self.steps)


def folder_of(run_dir: Path, number: int) -> Path:
    """Where a request's files are."""
    return run_dir / FOLDER / f"{number:03d}"


def trace_name(number: int, rank: int) -> str:
    """A trace's path within the run's folder."""
    return f"{FOLDER}/{number:03d}/rank-{rank}.json.gz"


def begin_profile(run_dir: Path) -> int:
    """The next request's number, whose folder is made, so that nobody else takes it. Raises OSError."""
    (run_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
    number = max(list_profiles(run_dir), default=0)
    while True:
        number += 1
        try:
            folder_of(run_dir, number).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return number


def list_profiles(run_dir: Path) -> list[int]:
    """Numbers of the requests of which there is a folder, the oldest first."""
    try:
        names = [path.name for path in (run_dir / FOLDER).iterdir()]
    except OSError:
        names = []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def write_summary(run_dir: Path, summary: ProfileSummary) -> None:
    """Keep what one rank's comes to. Raises OSError."""
    path = folder_of(run_dir, summary.number) / f"rank-{summary.rank}.summary.json"
    write_own(path, msgspec.json.encode(summary))


def read_summaries(run_dir: Path, number: int, is_anybodys: bool = False) -> Iterator[ProfileSummary]:
    """Of one request, by rank. What cannot be read, or is none, is passed over."""
    folder = folder_of(run_dir, number)
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return
    for _, name in sorted((int(m[1]), m[0]) for m in map(_SUMMARY.fullmatch, names) if m):
        with suppress(OSError, ValueError):
            data = read_own(folder / name, is_anybodys=is_anybodys, limit=2 * MAX_SUMMARY_BYTES)
            summary = msgspec.json.decode(data, type=known_type(ProfileSummary))
            if summary.steps:
                yield summary


def prune_profiles(run_dir: Path) -> None:
    """Let the oldest requests go where there are too many, or they take too much room. Raises OSError."""
    room = KEEP_BYTES
    for count, number in enumerate(reversed(list_profiles(run_dir))):
        folder = folder_of(run_dir, number)
        room -= sum(path.lstat().st_size for path in folder.iterdir())
        if count and (count >= KEEP or room < 0):
            shutil.rmtree(folder)
