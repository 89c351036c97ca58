"""What the engine's work costs: CPU time per kind of event, the largest, and memory.

Reading the CPU's clock may cost more than a small event does: of the frequent kinds one in so many is timed, and what
reading the clock takes is left out.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

_FREQUENT = frozenset({"NodeJoined", "NodeReport", "RankExited"})
_ONE_IN = 32
Answer = TypeVar("Answer")


def _clock_s() -> float:
    """What two readings of the clock are apart."""
    times = [time.process_time() for _ in range(100)]
    return statistics.median(b - a for a, b in pairwise(times))


@dataclass
class Load:
    """Filled by whoever feeds the engine."""

    count: Counter[str] = field(default_factory=Counter)
    spent_s: dict[str, float] = field(default_factory=dict)
    largest_s: float = 0.0
    largest: str = ""
    looks: int = 0
    _clock_s: float = field(default_factory=_clock_s)

    def time(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Call, and note what it took."""
        self.count[name] += 1
        weight = _ONE_IN if name in _FREQUENT else 1
        if self.count[name] % weight:
            return call()
        began = time.process_time()
        answer = call()
        spent_s = max(0.0, time.process_time() - began - self._clock_s)
        self.spent_s[name] = self.spent_s.get(name, 0.0) + spent_s * weight
        if spent_s > self.largest_s:
            self.largest_s, self.largest = spent_s, name
        return answer

    @property
    def events(self) -> int:
        return sum(self.count.values())

    @property
    def cpu_s(self) -> float:
        return sum(self.spent_s.values())


def peak_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
