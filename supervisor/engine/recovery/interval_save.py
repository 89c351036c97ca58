"""Saves as often as they are worth it (`[checkpoint] auto_interval = true`): should_checkpoint() says yes then.

    each save → what one costs, and so the interval → nothing is saved for so long → AskSave → the ranks save, or don't

Young's interval, by Daly's higher order: a save of C seconds, where training is broken off every M seconds on average,
is best made every √(2·C·M)·(1 + ⅓·√(C/2M) + ⅑·C/2M) − C seconds. What is in between is done again, half of it on
average. (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006.)
"""

from __future__ import annotations

import math
from statistics import median

from guardrun.supervisor.engine.model.actions import Action, AskSave
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.voluntary.in_time import why_spoilt
from guardrun.supervisor.engine.state.state import State, attempt_of

FIRST_S = 60.0
"""Until a save has been seen, nobody knows what one costs."""
FLOOR_S, CEILING_S = 10.0, 3600.0
MOST_SHARE = 0.1
"""Of training that saves may take, whatever they would spare."""
PRIOR_S = 12 * 3600.0
"""A run of which nothing is known yet is taken for one that is broken off once in so long."""
CHANGES = 1.25
"""The interval stays what it is until the best one is so many times longer, or shorter."""
LEAST_COST_S = 0.01


def due_s(state: State) -> float | None:
    """When the ranks are to be asked."""
    settings, attempt = state.settings, state.attempt
    if not settings.auto_interval or not settings.act or attempt is None or state.phase is not Phase.RUNNING:
        return None
    if state.notice.cause or state.is_held or (attempt.resumed_from is not None and not attempt.has_resumed):
        return None
    return max(attempt.started_s, state.save_times.last_s, state.interval_asked_s) + (state.interval_s or FIRST_S)


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    at_s = due_s(state)
    if at_s is None or now_s < at_s:
        return []
    state.interval_asked_s = now_s
    return [] if why_spoilt(state) else [AskSave(attempt=attempt_of(state).number)]


def on_saved(state: State, now_s: float) -> None:
    """A save has been booked: the interval follows."""
    if state.settings.auto_interval and state.save_times.costs_s:
        broken_off_s = (PRIOR_S + now_s - state.opened_s) / (1 + state.restarts)
        state.interval_s = next_interval_s(state.interval_s, median(state.save_times.costs_s), broken_off_s)


def next_interval_s(before_s: float, save_s: float, broken_off_s: float) -> float:
    """The interval from now on. before_s: the one so far; 0: there is none."""
    save_s = max(save_s, LEAST_COST_S)
    best_s = min(max(best_interval_s(save_s, broken_off_s), FLOOR_S, save_s / MOST_SHARE), CEILING_S)
    return before_s if before_s / CHANGES <= best_s <= before_s * CHANGES else best_s


def best_interval_s(save_s: float, broken_off_s: float) -> float:
    """Daly's; where a save takes longer than training lasts, as long as that lasts."""
    if save_s >= 2 * broken_off_s:
        return broken_off_s
    ratio = save_s / (2 * broken_off_s)
    return math.sqrt(2 * save_s * broken_off_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s
