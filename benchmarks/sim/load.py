"""What the engine's work costs: time per kind of event, the largest, and memory.

By the wall's clock: reading the CPU's costs more than most events do.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Load:
    """Filled by whoever feeds the engine."""

    count: Counter[str] = field(default_factory=Counter)
    spent_s: Counter[str] = field(default_factory=Counter)
    largest_s: float = 0.0
    largest: str = ""
    looks: int = 0

    def note(self, name: str, seconds: float) -> None:
        self.count[name] += 1
        self.spent_s[name] += seconds  # type: ignore[assignment]
        if seconds > self.largest_s:
            self.largest_s, self.largest = seconds, name

    @property
    def events(self) -> int:
        return sum(self.count.values())

    @property
    def total_s(self) -> float:
        return float(sum(self.spent_s.values()))


def peak_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
