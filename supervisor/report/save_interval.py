"""How often a run saved, and how often it should have: what its saves cost, and what was done again for want of one.

Young's and Daly's interval: supervisor/engine/recovery/interval_save.py has it.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.interval_save import LEAST_COST_S, best_interval_s
from guardrun.supervisor.report.elements.quantities import duration

MAX_SAVES = 20_000
LEAST_GAIN_S, LEAST_GAIN = 60.0, 0.01
"""What is told would have saved as much: seconds, and of the time in which steps were made."""
MUCH = 1.5
"""And cost so many times less."""


class Saves:
    """All of a run's, as the journal tells them; the engine remembers only the newest, to act by (SaveTimes)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[float, float]] = {}
        """By attempt and step: when it was done, and how long the slowest rank took."""

    def feed(self, event: ev.Event, now_s: float) -> None:
        """Learn from one event."""
        if not isinstance(event, ev.CheckpointSaved) or event.duration_s < 0:
            return
        key = event.attempt, event.step
        if key in self._known or len(self._known) < MAX_SAVES:
            at_s, took_s = self._known.get(key, (now_s, 0.0))
            self._known[key] = at_s, max(took_s, event.duration_s)

    def costs_s(self) -> list[float]:
        """How long each took."""
        return [took_s for _, took_s in self._known.values()]

    def gaps_s(self) -> list[float]:
        """From one to the next, within an attempt."""
        times: dict[int, list[float]] = {}
        for (attempt, _), (at_s, _) in sorted(self._known.items(), key=lambda item: item[1][0]):
            times.setdefault(attempt, []).append(at_s)
        return [later - at_s for each in times.values() for at_s, later in pairwise(each)]


class Terms(NamedTuple):
    """What a run's restarts have cost so far."""

    restarts: int
    stepping_s: float
    """In which steps were made, those done again included."""
    redone_s: float
    """Of these: done again."""


class SaveInterval(msgspec.Struct, frozen=True, kw_only=True):
    """How often the run saved, and how often it had better; seconds."""

    save_s: float
    """One save; median."""
    interval_s: float
    """From one to the next; median."""
    broken_off_s: float
    """Training from one restart to the next; mean."""
    cost_s: float
    """What was done again, and all saves."""
    best_interval_s: float
    best_cost_s: float
    """What these would have been, on average, at that interval."""


def judge(saves: Saves, terms: Terms) -> SaveInterval | None:
    """None: too little is known, or the run saved about as often as it should have."""
    costs, gaps = saves.costs_s(), saves.gaps_s()
    if not costs or not gaps or terms.restarts < 1 or terms.stepping_s <= 0:
        return None
    save_s, broken_off_s = max(median(costs), LEAST_COST_S), terms.stepping_s / terms.restarts
    best_s = best_interval_s(save_s, broken_off_s)
    cost_s = terms.redone_s + sum(costs)
    best_cost_s = terms.restarts * best_s / 2 + terms.stepping_s / best_s * save_s
    gain_s = cost_s - best_cost_s
    if gain_s < max(LEAST_GAIN_S, LEAST_GAIN * terms.stepping_s) or cost_s < MUCH * best_cost_s:
        return None
    # Where restarts came at bad moments, rather than saves too seldom, another interval would have helped nothing.
    interval_s = median(gaps)
    if best_s / MUCH < interval_s < best_s * MUCH:
        return None
    return SaveInterval(
        save_s=round(save_s, 3),
        interval_s=round(interval_s, 1),
        broken_off_s=round(broken_off_s, 1),
        cost_s=round(cost_s, 1),
        best_interval_s=round(best_s, 1),
        best_cost_s=round(best_cost_s, 1),
    )


def describe(found: SaveInterval) -> str:
    """One sentence for the report."""
    return (
        f"The run saved every {duration(found.interval_s)}; what was done again after restarts, and saves of "
        f"{duration(found.save_s)} each, took {duration(found.cost_s)}. A save every {duration(found.best_interval_s)} "
        f"would have cost some {duration(found.best_cost_s)}, where training is broken off every "
        f"{duration(found.broken_off_s)} on average."
    )
