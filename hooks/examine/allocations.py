"""Which lines of Python have come to hold more memory, within a minute or so: tracemalloc, on a person's request.

Each allocation of Python is traced while it lasts, with the lines that made it. Two snapshots after a third of the
time, a beat apart, are compared with two at its end: what counts is by how much the lesser of these exceeds the greater
of those, so that what a step allocates and frees again is not in it. What C code asks the system for is not seen:
tensors' data, a graph that is kept, a driver's buffers. So the answer also says by how much the process has grown.

What it costs: a line of Python that allocates takes several times as long meanwhile, in all threads; a step that is
bound by Python twice as long; each snapshot holds the GIL for some 0.3 µs a traced allocation. It ends early when
tracemalloc's own tables hold MAX_TABLES_BYTES.

A script that traces by itself keeps its traces, which are looked at as they are, if they are not too many. One that
starts to do so meanwhile gets tracing of its own, and this one is over: `_tracemalloc`'s three functions that a script
would go by are ours for the time, and say what they would without us.
"""

from __future__ import annotations

import _tracemalloc
import sys
from _thread import allocate_lock
from time import monotonic_ns

from guardrun.hooks.calls.call_places import is_users
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.examinations import MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

FRAMES = 4
"""Of an allocation: each costs a tenth of the first one's time."""
WARM_UP = 1 / 3
"""Share of the time before the first snapshot."""
LAST_NS = 1_500_000_000
"""Before the end: the last but one."""
MAX_TABLES_BYTES = 32 << 20
"""Half a million allocations: a snapshot of them holds the GIL for 0.2 s."""
MAX_SITES = 15
MAX_MORE = 5
"""Sites that hold more objects, and not so many bytes: tensors are small objects to Python."""
MAX_PATH_CHARS = 300
SHORTEST_S = 10.0
OWN = "guardrun/hooks/examine/"
NOTHING = (0, 0)

if TYPE_CHECKING:
    Stack = tuple[tuple[str, int], ...]
    """File and line of each frame, innermost first."""
    Sums = Mapping[Stack, tuple[int, int]]
    """Bytes and objects, by the stack that allocated them."""


class Reading:
    """What the process holds at a moment."""

    def __init__(self, rank: Rank) -> None:
        sizes = read_sizes()
        self.at_ns = monotonic_ns()
        self.step = rank.step_now()
        self.resident = sizes.get("RssAnon", 0) + sizes.get("VmSwap", 0)
        self.shared = sizes.get("RssShmem", 0)
        self.python = _tracemalloc.get_traced_memory()[0]
        self.tables = _tracemalloc.get_tracemalloc_memory()


class Allocations:
    """One request. Arguments: `seconds`."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        seconds = float(arguments.get("seconds") or 0.0)
        if not SHORTEST_S <= seconds <= MAX_SECONDS:
            raise ValueError(f"from {SHORTEST_S:g} to {MAX_SECONDS:g} seconds can be traced, not {seconds:g}")
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
        self._before: Sums = {}
        """The greater of the first two snapshots, and when the later one was taken."""
        self._before_ns = now_ns
        self._after: Sums | None = None
        """The last but one, likewise."""
        self._after_ns = 0
        self._start = self._first = self._last = Reading(rank)
        """At the beginning; then a beat after the second snapshot: what it took itself has been given back by then."""
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
        elif self._first is self._start:
            self._first = Reading(self._rank)
        elif self._after is None and now_ns >= self.ends_ns - LAST_NS:
            self._last = Reading(self._rank)
            self._after, self._after_ns = add_up(self._snapshot()), now_ns
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
            "snapshots_s": round(self._held_ns / 1e9, 3),
            "grown": {
                "seconds": round((last.at_ns - first.at_ns) / 1e9, 1),
                "steps": last.step - first.step,
                "resident_bytes": last.resident - first.resident,
                "shared_bytes": last.shared - first.shared,
                "python_bytes": last.python - first.python,
                "tables_bytes": last.tables - first.tables,
            },
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


# Sites --------------------------------------------------------------------------------------------------------------
# Pure: what traces come to, line by line.


class Site:
    """A line, and what it has come to hold."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        """Of those that lead to it, the one that has grown most."""
        self.size = self.count = 0
        self._most = 0

    def add(self, stack: Stack, size: int, count: int) -> None:
        """Add a stack that leads here."""
        self.size += size
        self.count += count
        if size > self._most:
            self._most, self.stack = size, stack

    def describe(self) -> dict[str, Any]:
        """As data: the line that is most likely to be of use, and the stack with it."""
        file, line = place_of(self.stack)
        return {
            "file": file[-MAX_PATH_CHARS:],
            "line": line,
            "bytes": self.size,
            "objects": self.count,
            "stack": [[name[-MAX_PATH_CHARS:], number] for name, number in self.stack],
        }


def add_up(traces: Iterable[Any]) -> Sums:
    """Bytes and objects by stack. traces: as `_tracemalloc._get_traces` has them, those of guardrun left out."""
    sums: dict[Stack, tuple[int, int]] = {}
    for _, size, stack, _ in traces:
        known = sums.get(stack)
        sums[stack] = (size, 1) if known is None else (known[0] + size, known[1] + 1)
    return {stack: found for stack, found in sums.items() if not any(OWN in file for file, _ in stack)}


def merge(one: Sums, other: Sums, choose: Callable[[int, int], int]) -> Sums:
    """Of two snapshots a moment apart the greater (max), or the lesser (min), numbers of each stack."""
    merged = {}
    for stack in one.keys() | other.keys():
        (size, count), (its, number) = one.get(stack, NOTHING), other.get(stack, NOTHING)
        merged[stack] = choose(size, its), choose(count, number)
    return merged


def place_of(stack: Stack) -> tuple[str, int]:
    """The innermost line of the user's own code, else the innermost."""
    return next((place for place in stack if is_users(place[0])), stack[0] if stack else ("?", 0))


def find_sites(before: Sums, after: Sums) -> list[Site]:
    """What has come to hold more, most bytes first: a line of the user's and the one below it that allocates."""
    sites: dict[Any, Site] = {}
    for stack in before.keys() | after.keys():
        was, now = before.get(stack, NOTHING), after.get(stack, NOTHING)
        if was != now:
            key = place_of(stack), stack[:1]
            sites.setdefault(key, Site(stack)).add(stack, now[0] - was[0], now[1] - was[1])
    return sorted((site for site in sites.values() if site.size > 0), key=lambda site: (-site.size, site.stack))


def choose_sites(sites: list[Site]) -> list[Site]:
    """Those that are shown: the largest, and of the others those with most objects."""
    others = sorted(sites[MAX_SITES:], key=lambda site: -site.count)
    return sites[:MAX_SITES] + [site for site in others[:MAX_MORE] if site.count > 1]


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
