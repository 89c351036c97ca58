"""Times, durations and sizes, as text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from guardrun.supervisor.engine.membership.reachability import names


def iso_time(wall_s: float) -> str:
    """Seconds since the epoch as UTC with milliseconds: `2026-11-20T23:53:01.250Z`."""
    # Whole milliseconds first: isoformat cuts what is beyond them, so 1.2999999 would read 1.299.
    moment = datetime.fromtimestamp(round(wall_s * 1000) / 1000, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_iso_time(text: str) -> float:
    """The inverse of iso_time. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def duration(seconds: float) -> str:
    """`0.4 s`, `33 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {smaller_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def place_words(head: str, nodes: Iterable[str]) -> str:
    """Where a run is: `node-a`, or `3 nodes (n1, n2, n3), head n1`. nodes: of its ranks, in their order."""
    known = list(dict.fromkeys(nodes))
    if not known or known == [head]:
        return head
    if len(known) == 1:
        return f"{known[0]}, head {head}"
    return f"{len(known)} nodes ({names(known)}), head {head}"
