"""Whose native code a rank runs in without end: a device's driver's, NCCL's, or somebody else's.

The line of Python is the same either way. py-spy's native frames tell, and pause the process while they are read: so a
rank is asked for a place in which it has been seen twice, beside the looks, a few ranks at a time, those that are
behind first, and each time after it has stayed for twice as long as before. Never while a device's graph is captured.

A thread that sleeps would show its program counter in /proc/PID/task/TID/syscall, one that runs shows none; and what
sleeps in a driver has called the C library for that, where the counter then is.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.collect.collectives.recorder_reader import is_heart_stale
from guardrun.supervisor.collect.host.procfs import ThreadStat, read_stat
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.stack_dumps import NATIVE_S, dump_pyspy
from guardrun.supervisor.engine.model.looks import Frame, Library, NativeSpot, ThreadLook
from guardrun.supervisor.engine.observation.frames import communication, is_in_backward

LOOKS = 2
"""In so many the place must have been the same."""
AGAIN_S = 20.0
AGAIN_MAX_S = 300.0
"""A rank that was paused before must have been there for so long; each time twice that, up to a limit."""
FEW = 4
"""Ranks of a node that may be asked for at a time."""
_MOST_RANKS = 4096
_NAME_CHARS = 200
"""Of a C++ template's there are thousands."""
_ENGINES_THREAD = "pt_autograd"
"""Beginning of the name that torch gives the threads of its autograd engine."""
_FAMILIES = (
    (Library.CUDA, ("libcuda.so", "libcudart")),
    (Library.NCCL, ("libnccl.so", "librccl.so")),
    (Library.HIP, ("libamdhip64", "libhsa-runtime64")),
    (Library.LEVEL_ZERO, ("libze_loader", "libze_intel_gpu")),
)
_BELOW = ("libc.so", "libc-2.", "libpthread", "librt.so", "librt-2.", "ld-linux", "ld-musl", "[vdso]")
"""What every library calls to look at the clock or to yield: who has called that counts."""


class Place(NamedTuple):
    """Where a main thread is in Python; equal in two looks: nothing else was seen in between."""

    progress: tuple[int, ...]
    """When anything last advanced, and torch's count of collectives; zeros without hooks."""
    frames: tuple[Frame, ...]
    """Innermost first."""


class Asker(NamedTuple):
    """A rank that may be asked for."""

    pid: int
    start: int
    tid: int
    """The thread that runs."""
    place: Place
    order: tuple[int, ...]
    """How far it is: less is behind."""
    board: BoardReader | None


def find_place(words: Sequence[int], dumped: Iterable[ThreadLook]) -> Place | None:
    """Where a rank is; None where that is not shown, or where it waits for other ranks. words: its board's."""
    main = next((thread for thread in dumped if thread.is_main and thread.frames), None)
    if main is None or communication(main.frames):
        return None
    return Place((words[Field.PROGRESS_NS], words[Field.GROUP_SEQ]), tuple(main.frames))


def find_runner(pid: int, place: Place, words: Sequence[int], threads: Iterable[ThreadStat], gil_tid: int) -> int:
    """The thread that runs there, and may be in native code: the main one, or one of autograd's engine; 0 for none.

    gil_tid: who holds the GIL, 0 for nobody.
    """
    running = {thread.tid: thread for thread in threads if thread.state == "R"}
    engines = [thread for thread in running.values() if thread.name.startswith(_ENGINES_THREAD)]
    if pid in running:
        tid = pid
    elif engines and is_in_backward(list(place.frames)):
        tid = max(engines, key=lambda thread: thread.cpu_s).tid
    else:
        return 0
    # Python hands the GIL on. Native code that keeps it does not, and the hooks' thread stands still.
    is_python = tid == gil_tid and words[Field.HEART_NS] and not is_heart_stale(list(words))
    return 0 if is_python else tid


class _Seen(msgspec.Struct):
    """What is known of one rank's process."""

    start: int
    place: Place
    since: float
    """time.monotonic() of the first look that showed it there."""
    looks: int = 0
    is_asking: bool = False
    was_asked: bool = False
    """For this place."""
    pauses: int = 0
    """For any."""
    spot: NativeSpot | None = None

    def is_wanted(self, now: float) -> bool:
        """Whether it is time to ask."""
        again_s = min(AGAIN_MAX_S, AGAIN_S * 2.0 ** (self.pauses - 1)) if self.pauses else 0.0
        return self.looks >= LOOKS and now - self.since >= again_s and not (self.was_asked or self.is_asking)


class NativeFrames:
    """What ranks were asked, and what they answered: another look has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}

    def look(self, ranks: Sequence[Asker], now: float, pyspy: str | None = None) -> list[int]:
        """Take in where a node's ranks are, and ask those for which it is time; answers their pids.

        now: time.monotonic().
        """
        with self._lock:
            if len(self._seen) > _MOST_RANKS:
                self._seen = {pid: seen for pid, seen in self._seen.items() if seen.is_asking}
            for rank in ranks:
                self._note(rank, now)
            wanted = [rank for rank in ranks if self._seen[rank.pid].is_wanted(now) and not _is_capturing(rank.board)]
            room = FEW - sum(seen.is_asking for seen in self._seen.values())
            asked = sorted(wanted, key=lambda rank: (rank.order, rank.pid))[: max(0, room)]
            for rank in asked:
                seen = self._seen[rank.pid]
                seen.is_asking = seen.was_asked = True
                seen.pauses += 1
                PAUSES.begin(rank.pid)
        for rank in asked:
            work = functools.partial(self._work, rank, pyspy)
            threading.Thread(target=work, name="guardrun-native", daemon=True).start()
        return [rank.pid for rank in asked]

    def spot(self, pid: int, start: int, place: Place | None) -> NativeSpot | None:
        """Where the thread was, if it still is at that place; None where that is not known, or not yet."""
        with self._lock:
            seen = self._seen.get(pid)
            return seen.spot if seen is not None and (seen.start, seen.place) == (start, place) else None

    def _note(self, rank: Asker, now: float) -> None:
        seen = self._seen.get(rank.pid)
        if seen is None or seen.start != rank.start:
            seen = self._seen[rank.pid] = _Seen(rank.start, rank.place, now)
        elif seen.place != rank.place:
            seen.place, seen.since, seen.looks, seen.was_asked, seen.spot = rank.place, now, 0, False, None
        seen.looks += 1

    def _work(self, rank: Asker, pyspy: str | None) -> None:
        spot = None
        try:
            with PAUSES.turn(rank.pid):
                spot = _read_spot(rank, pyspy)
        finally:
            with self._lock:
                seen = self._seen[rank.pid]
                seen.is_asking = False
                if seen.start == rank.start and seen.place == rank.place:
                    seen.spot = spot


NATIVE_FRAMES = NativeFrames()


def _read_spot(rank: Asker, pyspy: str | None) -> NativeSpot | None:
    """Its turn may have come late: whether it still runs there is seen again."""
    stat = read_stat(rank.pid)
    if stat is None or stat.start != rank.start or stat.state not in "RS" or _is_capturing(rank.board):
        return None
    dump = dump_pyspy(rank.pid, timeout_s=NATIVE_S, native=True, program=pyspy)
    return parse_spot(dump.text, rank.pid, rank.tid, rank.place) if not dump.trouble else None


def _is_capturing(board: BoardReader | None) -> bool:
    words = board.read() if board is not None else None
    return words is not None and words[Field.CAPTURES] > 0


# py-spy's native frames ----------------------------------------------------------------------------------------------


def parse_spot(text: str, pid: int, tid: int, place: Place) -> NativeSpot | None:
    """The library that a thread is in, by `py-spy dump --json --native`; None where it is elsewhere, or nothing tells.

    Raises ValueError where it is no such JSON.
    """
    threads = {item.get("os_thread_id"): item.get("frames") or [] for item in json.loads(text)}
    main = [frame for frame in threads.get(pid, []) if not _is_native(frame)]
    if [_python_frame(frame) for frame in main[: len(place.frames)]] != list(place.frames):
        return None
    native = list(takewhile(_is_native, threads.get(tid, [])))
    libraries = [os.path.basename(str(frame.get("module") or "")) for frame in native]
    first = next((index for index, name in enumerate(libraries) if not name.startswith(_BELOW)), None)
    if first is None:
        return None
    library = libraries[first]
    # What was called of it: inside, most functions have no name.
    inside = list(takewhile(lambda pair: pair[1] == library, zip(native[first:], libraries[first:], strict=True)))
    names = [name for frame, _ in inside if not (name := str(frame.get("name", ""))).startswith("0x")]
    return NativeSpot(library_family(library), names[-1][:_NAME_CHARS] if names else "", library)


def library_family(name: str) -> Library:
    """Whose a library is, by its file's name (libcuda.so.580.65.06, libnccl.so.2)."""
    return next((family for family, beginnings in _FAMILIES if name.startswith(beginnings)), Library.OTHER)


def _is_native(frame: dict[str, Any]) -> bool:
    """Whether it is no frame of Python's: it has a library, or lies in none (generated code)."""
    return bool(frame.get("module")) or frame.get("filename") == "?"


def _python_frame(frame: dict[str, Any]) -> Frame:
    return Frame(str(frame.get("name", "")), str(frame.get("filename", "")), int(frame.get("line") or 0))
