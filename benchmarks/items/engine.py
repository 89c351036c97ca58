"""Events a second through the engine."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks import engine_bench
from benchmarks.item import Bench, Figure, Target

TURNS = 3


class Shown(NamedTuple):
    """How one of the bench's figures is shown."""

    name: str
    unit: str
    target: Target | None = None


SHOWN = {
    "engine_events_per_s_8_ranks": Shown("engine: reports of a node whose 8 ranks all advance", "1/s"),
    "engine_events_per_s_100000_ranks": Shown("engine: reports of 12,500 nodes (100,000 ranks)", "1/s"),
    "engine_core_share_at_12500_reports_per_s": Shown("engine: one second's reports of 12,500 nodes", "s", Target(1)),
}
"""A figure that isn't named here is shown by its own name, as a rate."""


class EngineItem:
    """What benchmarks/engine_bench.py measures, some turns of it."""

    name = "engine"
    title = "Events a second through the engine"

    def measure(self, bench: Bench) -> list[Figure]:
        """One figure for each of its own."""
        turns = [engine_bench.run() for _ in range(bench.choose(1, TURNS))]
        return [
            Figure(shown.name, shown.unit, tuple(turn[key] for turn in turns), target=shown.target)
            for key in turns[0]
            for shown in [SHOWN.get(key, Shown(key, "1/s"))]
        ]
