"""Garbage collections that each take little, and together hold the job up: `slowdown`, cause `gc_pressure`.

Ranks train in step: while one collects, all that share a collective with it wait. Collections at different steps add
up, those at the same step cost as much as the longest. A node's reports come once a second and say how long each of its
ranks has collected so far; of each the rank that collected longest counts, and of the nodes the one that comes to most.
So what is told is the least that collections have cost, whoever waited for whom: several within a second count as one.

Told once a run, after two windows in a row that say so; nothing is done about it.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import Action
from guardrun.supervisor.core.frames import rank_list
from guardrun.supervisor.core.incidents import open_slowdown
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.sentences import who
from guardrun.supervisor.core.state import Attempt, Pressure, State, attempt_of

LIMIT = 0.1
"""Share of the time."""
WINDOW_S = 30.0
WINDOW_STEPS = 20
WINDOWS = 2
"""In a row."""
SKEW = 1.25
"""What is lost is so much more than the rank that collects most spends: then they do not collect together."""
MAX_CULPRITS = 64
CULPRIT_SHARE = 0.5
"""Of what the rank that collects most spends."""
NOTE = "gc pressure"


def on_report(state: State, event: ev.NodeReport, now_s: float) -> list[Action]:
    """Take the collectors' times of a node's ranks in."""
    attempt = attempt_of(state)
    if state.phase is not Phase.RUNNING or NOTE in state.notes:
        return []
    window = attempt.pressure
    actions: list[Action] = []
    # Imports, compilation and the first step collect a lot, and nobody waits for it.
    is_first = not window.began_s and attempt.step > 0
    is_full = now_s - window.began_s >= WINDOW_S and attempt.step - window.first_step >= WINDOW_STEPS
    if is_first or (window.began_s and is_full):
        actions = _close(state, now_s) if window.began_s else []
        _begin(attempt, now_s)
    _take(window, event)
    return actions


def _begin(attempt: Attempt, now_s: float) -> None:
    window = attempt.pressure
    window.began_s, window.first_step = now_s, attempt.step
    window.held_s, window.spent_s = {}, {}


def _take(window: Pressure, event: ev.NodeReport) -> None:
    worst_s = 0.0
    for report in event.ranks:
        number, total_s = report.global_rank, report.gc_total_s
        spent_s = total_s - window.totals_s.get(number, total_s)
        window.totals_s[number] = total_s
        if spent_s > 0 and window.began_s:
            window.spent_s[number] = window.spent_s.get(number, 0.0) + spent_s
            worst_s = max(worst_s, spent_s)
    if worst_s:
        window.held_s[event.node] = window.held_s.get(event.node, 0.0) + worst_s


def _close(state: State, now_s: float) -> list[Action]:
    """A window is full: count it, and tell where it is one too many."""
    window = attempt_of(state).pressure
    lasted_s = now_s - window.began_s
    share = min(1.0, max(window.held_s.values(), default=0.0) / lasted_s)
    window.strikes = window.strikes + 1 if share >= LIMIT else 0
    if window.strikes < WINDOWS:
        return []
    state.notes.append(NOTE)
    return _tell(state, share, lasted_s, now_s)


def _tell(state: State, share: float, lasted_s: float, now_s: float) -> list[Action]:
    attempt = attempt_of(state)
    spent = attempt.pressure.spent_s
    most_s = max(spent.values())
    culprits = sorted(rank for rank, seconds in spent.items() if seconds >= CULPRIT_SHARE * most_s)
    shown = culprits[:MAX_CULPRITS]
    is_skewed = len(attempt.ranks) > 1 and share * lasted_s >= SKEW * most_s
    how = "collects" if len(shown) == 1 else "collect"
    if is_skewed:
        how += ", each at steps of its own, and all wait for each"
    summary = (
        f"Garbage collections cost at least {share:.0%} of the last {lasted_s:.0f} s: {who(attempt, shown)} {how}."
    )
    steps = attempt.step - attempt.pressure.first_step
    evidence: dict[str, Any] = {
        "share": round(share, 3),
        "window_s": round(lasted_s, 1),
        "steps": steps,
        "is_skewed": is_skewed,
        "ranks": rank_list(culprits),
        "spent_s": {str(rank): round(spent[rank], 1) for rank in shown},
        "policy": state.settings.gc_policy,
    }
    _, actions = open_slowdown(
        state,
        cause="gc_pressure",
        confidence=0.9,
        summary=summary,
        culprits=shown,
        onset_s=max(0.0, now_s - WINDOWS * lasted_s),
        now_s=now_s,
        evidence=evidence,
    )
    return actions
