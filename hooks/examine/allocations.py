"""Which lines of Python have come to hold more memory, within a minute or so: tracemalloc, on a person's request.

Each allocation of Python is traced while it lasts, with the lines that made it. Two snapshots after a third of the
time, a beat apart, are compared with two at its end: what counts is by how much the lesser of these exceeds the greater
of those, so that what a step allocates and frees again is not in it. What C code asks the system for is not seen:
tensors' data, a graph that is kept, a driver's buffers. So the answer also says by how much the process has grown, how
much more the device's allocator has handed out, and of which shapes there are more tensors (hooks/examine/tensors.py).

What it costs: a line of Python that allocates takes ten times as long meanwhile, in all threads; a step that is bound
by Python two or three times as long; each snapshot holds the GIL for some 0.3 µs a traced allocation. It ends early
when tracemalloc's own tables hold MAX_TABLES_BYTES.

A script that traces by itself keeps its traces, which are looked at as they are, if they are not too many. One that
starts to do so meanwhile gets tracing of its own, and this one is over: `_tracemalloc`'s three functions that a script
would go by are ours for the time, and say what they would without us.
"""

from __future__ import annotations

import _tracemalloc
import sys
from _thread import allocate_lock
from time import monotonic_ns

from guardrun.hooks.examine.growth import add_up, choose_sites, find_sites, merge
from guardrun.hooks.examine.tensors import Tensors
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.examinations import MAX_SECONDS, MIN_TRACED_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from guardrun.hooks.examine.growth import Stack, Sums

FRAMES = 4
"""Of an allocation: a module that is called takes three, the fourth is its caller. Each costs a tenth more."""
WARM_UP = 1 / 3
"""Share of the time before the first snapshot."""
LAST_NS = 1_500_000_000
"""Before the end: the last but one."""
MAX_TABLES_BYTES = 32 << 20
"""Half a million allocations: a snapshot of them holds the GIL for 0.2 s."""


class Reading:
    """What the process holds at a moment."""

    def __init__(self, rank: Rank) -> None:
        sizes = read_sizes()
        self.at_ns = monotonic_ns()
        self.step = rank.step_now()
        self.resident = sizes.get("RssAnon", 0) + sizes.get("VmSwap", 0)
        self.shared = sizes.get("RssShmem", 0)
        self.traced = _tracemalloc.get_traced_memory()[0]
        self.tables = _tracemalloc.get_tracemalloc_memory()
        self.device = rank.memory.read_allocated() if rank.memory is not None else None


class Allocations:
    """One request. Arguments: `seconds`."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        seconds = float(arguments.get("seconds") or 0.0)
        if not MIN_TRACED_S <= seconds <= MAX_SECONDS:
            raise ValueError(f"from {MIN_TRACED_S:g} to {MAX_SECONDS:g} seconds can be traced, not {seconds:g}")
        self._rank = rank
        self._lock = allocate_lock()
        self._is_ours = not _tracemalloc.is_tracing()
        if not self._is_ours and (tables := _tracemalloc.get_tracemalloc_memory()) > MAX_TABLES_BYTES:
            raise ValueError(
                f"the script traces its allocations itself, and so many ({tables >> 20} MB of traces) that a snapshot "
                "of them would hold it up"
            )
        self._originals: dict[str, Any] = {}
        self._is_tracing = True
        """Until it ends."""
        self._is_replaced = False
        """The script traces by itself, from some moment on."""
        now_ns = monotonic_ns()
        self._began_ns, self.ends_ns = now_ns, now_ns + int(seconds * 1e9)
        self._first_ns = now_ns + int(WARM_UP * seconds * 1e9)
        self._snapshots = 0
        self._before: Sums[Stack] = {}
        """The greater of the first two snapshots, and when the later one was taken."""
        self._before_ns = now_ns
        self._after: Sums[Stack] | None = None
        """The last but one, likewise."""
        self._after_ns = 0
        self._start = self._first = self._last = Reading(rank)
        """At the beginning; then a beat after the second snapshot: what it took itself has been given back by then."""
        self._tensors = Tensors()
        self._held_ns = 0
        """What the snapshots took."""
        if self._is_ours:
            self._replace()
            self._originals["start"](FRAMES)

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Look at the tables; take a snapshot when it is time; the answer after the second one."""
        if self._is_replaced:
            raise ValueError("the script has begun to trace its allocations itself: ask again, and they are looked at")
        if not self._is_ours and not _tracemalloc.is_tracing():
            raise ValueError("the script, which traced its allocations itself, has stopped that")
        are_many = _tracemalloc.get_tracemalloc_memory() > MAX_TABLES_BYTES
        if now_ns >= self.ends_ns or are_many:
            return self._conclude(are_many)
        if self._snapshots < 2:
            if now_ns >= self._first_ns:
                self._before = merge(self._before, add_up(self._snapshot()), max)
                self._before_ns = now_ns
                if self._snapshots == 2:
                    self._tensors.count(is_after=False)
        elif self._first is self._start:
            self._first = Reading(self._rank)
        elif self._after is None and now_ns >= self.ends_ns - LAST_NS:
            self._last = Reading(self._rank)
            self._after, self._after_ns = add_up(self._snapshot()), now_ns
            self._tensors.count(is_after=True)
        return None

    def end(self) -> None:
        """Trace no more, where it was us who began it; the traces are gone with that."""
        held = self._lock.acquire(timeout=1.0)  # a forked child may have it from a thread that it does not have
        try:
            if self._is_tracing and self._is_ours:
                self._give_back()
                self._originals["stop"]()
            self._is_tracing = False
        finally:
            if held:
                self._lock.release()

    # Snapshots -------------------------------------------------------------------------------------------------

    def _conclude(self, are_many: bool) -> dict[str, Any]:
        if not self._snapshots and not self._is_ours:
            raise ValueError("the script traces its allocations itself, and they have become too many for a snapshot")
        if self._after is None:
            self._last, self._after_ns = Reading(self._rank), monotonic_ns()
        traces = self._snapshot()
        frames, count = _tracemalloc.get_traceback_limit(), len(traces)
        self.end()  # what is made from here on need not be traced
        if self._snapshots > 1:
            self._tensors.count(is_after=True)
        after = add_up(traces)
        sites = find_sites(self._before, after if self._after is None else merge(self._after, after, min))
        shown, first, last = choose_sites(sites), self._first, self._last
        return {
            "traced_s": round((monotonic_ns() - self._began_ns) / 1e9, 1),
            "compared_s": round((self._after_ns - self._before_ns) / 1e9, 1),
            "is_from_start": not self._before,
            "is_cut": are_many,
            "is_scripts": not self._is_ours,
            "frames": frames,
            "allocations": count,
            "snapshots_s": round((self._held_ns + self._tensors.took_ns) / 1e9, 3),
            "grown": {
                "seconds": round((last.at_ns - first.at_ns) / 1e9, 1),
                "steps": last.step - first.step,
                "resident_bytes": last.resident - first.resident,
                "shared_bytes": last.shared - first.shared,
                "python_bytes": last.traced - first.traced,
                "tables_bytes": last.tables - first.tables,
                "device_bytes": more_of(first.device, last.device),
            },
            "tensors": self._tensors.describe(),
            "tensors_trouble": self._tensors.trouble,
            "sites": [site.describe() for site in shown],
            "sites_left_out": len(sites) - len(shown),
        }

    def _snapshot(self) -> Sequence[Any]:
        began_ns = monotonic_ns()
        traces: Any = _tracemalloc._get_traces()
        self._held_ns += monotonic_ns() - began_ns
        self._snapshots += 1
        return traces  # type: ignore[no-any-return]  # of C

    # The script's view -----------------------------------------------------------------------------------------

    def _replace(self) -> None:
        originals = self._originals = {name: getattr(_tracemalloc, name) for name in ("start", "stop", "is_tracing")}

        def start(nframe: int = 1, /) -> None:
            if self._lock.acquire(timeout=1.0):
                try:
                    if self._is_tracing:
                        self._give_back()
                        originals["stop"]()
                        self._is_tracing, self._is_replaced = False, True
                finally:
                    self._lock.release()
            originals["start"](nframe)

        def stop() -> None:
            if not self._is_tracing:
                originals["stop"]()

        def is_tracing() -> bool:
            return not self._is_tracing and bool(originals["is_tracing"]())

        self._ours: dict[str, Callable[..., Any]] = {"start": start, "stop": stop, "is_tracing": is_tracing}
        for module in self._modules():
            for name, ours in self._ours.items():
                setattr(module, name, ours)

    def _give_back(self) -> None:
        for module in self._modules():
            for name, ours in self._ours.items():
                if getattr(module, name, None) is ours:
                    setattr(module, name, self._originals[name])

    @staticmethod
    def _modules() -> list[Any]:
        return [sys.modules[name] for name in ("_tracemalloc", "tracemalloc") if name in sys.modules]


def more_of(first: int | None, last: int | None) -> int | None:
    """By how much; None where that is not known."""
    return None if first is None or last is None else last - first


def read_sizes() -> dict[str, int]:
    """Sizes of this process's memory, in bytes, as /proc/self/status names them; empty where it can't be read."""
    sizes = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if value.endswith("kB\n"):
                    sizes[name] = int(value.split()[0]) << 10
    except (OSError, ValueError):
        pass
    return sizes
