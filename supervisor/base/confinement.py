"""What a process puts on itself before it reads what may be of any size and hold anything. Standard library alone."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import suppress


def confine(limits: Mapping[int, int]) -> None:
    """Go first where memory is short, and have no more than these (resource.RLIMIT_…), or what is left of them."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # Where memory is short, this is to go rather than a rank.
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (least, least))
