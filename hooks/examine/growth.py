"""What snapshots come to, line by line. Pure."""

from __future__ import annotations

from guardrun.hooks.calls.call_places import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from typing import Any, TypeVar

    Key = TypeVar("Key", bound=Hashable)
    Stack = tuple[tuple[str, int], ...]
    """File and line of each frame, innermost first."""
    Sums = Mapping[Key, tuple[int, int]]
    """Bytes and objects: of each stack that allocated them, for instance."""

MAX_SITES = 15
MAX_MORE = 5
"""Sites that hold more objects, and not so many bytes: tensors are small objects to Python."""
MAX_PATH_CHARS = 300
OWN = "guardrun/hooks/examine/"
NOTHING = (0, 0)


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


def add_up(traces: Iterable[Any]) -> Sums[Stack]:
    """Bytes and objects by stack. traces: as `_tracemalloc._get_traces` has them, those of guardrun left out."""
    sums: dict[Stack, tuple[int, int]] = {}
    for _, size, stack, _ in traces:
        known = sums.get(stack)
        sums[stack] = (size, 1) if known is None else (known[0] + size, known[1] + 1)
    return {stack: found for stack, found in sums.items() if not any(OWN in file for file, _ in stack)}


def merge(one: Sums[Key], other: Sums[Key], choose: Callable[[int, int], int]) -> Sums[Key]:
    """Of two snapshots a moment apart the greater (max), or the lesser (min), numbers of each key."""
    merged = {}
    for stack in one.keys() | other.keys():
        (size, count), (its, number) = one.get(stack, NOTHING), other.get(stack, NOTHING)
        merged[stack] = choose(size, its), choose(count, number)
    return merged


def place_of(stack: Stack) -> tuple[str, int]:
    """The innermost line of the user's own code, else the innermost."""
    return next((place for place in stack if is_users(place[0])), stack[0] if stack else ("?", 0))


def find_sites(before: Sums[Stack], after: Sums[Stack]) -> list[Site]:
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
