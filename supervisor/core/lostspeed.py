"""Steps that take longer than they used to, for everybody: `slowdown`, cause `throughput_drop`.

A change of the mean alone gives false alarms (Greyhound): what is told is a shift of FACTOR or more, and of SPREADS
times what windows usually differ by, in each of LASTS windows in a row. Evaluations, saves and compilations are not in
the windows at all. What has been told already, and explains it (a straggler, data, a throttled device), is not told
twice.

The sentence says what the time goes to. A script that goes over to longer sequences, or larger batches, shows as the
own work of all ranks alike: that is said, and no fault is found with anybody.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core import slowdata
from guardrun.supervisor.core.actions import Action, Say
from guardrun.supervisor.core.incidents import change, open_slowdown
from guardrun.supervisor.core.sentences import seconds_text
from guardrun.supervisor.core.state import State
from guardrun.supervisor.core.steptimes import Parts, Window, middle

FACTOR = 1.2
SPREADS = 5
LASTS = 6
"""Windows: two minutes."""
BEFORE = 6
"""Windows at least that say what was usual."""
KEPT = 45
WELL = 3
WELL_FACTOR = 1.05
MOST_TOLD = 3
"""In a run."""
CONFIDENCE = 0.8
CAUSE = "throughput_drop"
_WORDS = {
    "work": "the ranks' own work, of all alike",
    "uneven": "the own work of some ranks, for which the others wait",
    "data": "waiting for data",
    "gc": "garbage collection",
    "rest": "communication",
}
"""What the time may go to."""


def on_window(state: State, window: Window, now_s: float) -> list[Action]:
    """A window is closed: is this still the speed that the run had?"""
    slow = state.slowdowns
    slow.parts = [*slow.parts, window.parts][-KEPT:]
    if slow.drop_incident:
        return _note_well(state, now_s)
    before, since = slow.parts[:-LASTS], slow.parts[-LASTS:]
    if len(before) < BEFORE or slow.strikes or not _is_drop(before, since):
        return []
    usual, now = typical(before), typical(since)
    slow.parts = since
    told = sum(incident.cause == CAUSE for incident in state.incidents.values())
    if told >= MOST_TOLD or _is_explained(state, part_of(usual, now)):
        return []
    return _tell(state, usual, now, LASTS * (now_s - window.began_s), now_s)


def _is_drop(before: list[Parts], since: list[Parts]) -> bool:
    steps_s = [parts.step_s for parts in before]
    usual_s = middle(steps_s)
    spread_s = middle([abs(step_s - usual_s) for step_s in steps_s])
    limit_s = usual_s + max((FACTOR - 1) * usual_s, SPREADS * spread_s)
    return all(parts.step_s >= limit_s for parts in since)


def typical(some: list[Parts]) -> Parts:
    """The median of each part."""
    return Parts(*(middle([parts[index] for parts in some]) for index in range(len(Parts._fields))))


def part_of(usual: Parts, now: Parts) -> str:
    """What most of the longer step goes to: a key of _WORDS."""
    more = {
        "work": now.work_s - usual.work_s,
        "data": now.data_s - usual.data_s,
        "gc": now.gc_s - usual.gc_s,
        "rest": now.rest_s - usual.rest_s,
    }
    part = max(more, key=lambda name: more[name])
    is_alike = now.median_work_s - usual.median_work_s >= more["work"] / 2
    return "uneven" if part == "work" and not is_alike else part


def _is_explained(state: State, part: str) -> bool:
    """Whether what has been told says why."""
    if state.slowdowns.told or (part == "data" and slowdata.NOTE in state.notes):
        return True
    named = {incident_id for incident_id in state.nodes.incidents.values() if incident_id in state.incidents}
    return any(state.incidents[incident_id].kind == "slowdown" for incident_id in named)


def _tell(state: State, usual: Parts, now: Parts, lasted_s: float, now_s: float) -> list[Action]:
    part = part_of(usual, now)
    summary = (
        f"Steps have taken {now.step_s / usual.step_s:.1f} times as long as before for {lasted_s:.0f} s: "
        f"{seconds_text(now.step_s)} each, before {seconds_text(usual.step_s)}; what has grown is {_WORDS[part]}."
    )
    evidence: dict[str, Any] = {
        "factor": round(now.step_s / usual.step_s, 3),
        "part": part,
        "usual": _as_dict(usual),
        "now": _as_dict(now),
        "place": f"throughput_drop: {part}",
    }
    incident, actions = open_slowdown(
        state,
        cause=CAUSE,
        confidence=CONFIDENCE,
        summary=summary,
        culprits=[],
        onset_s=max(0.0, now_s - lasted_s),
        now_s=now_s,
        evidence=evidence,
    )
    state.slowdowns.drop_incident = incident.id
    return actions


def _as_dict(parts: Parts) -> dict[str, float]:
    return {name: round(value, 4) for name, value in parts._asdict().items()}


def _note_well(state: State, now_s: float) -> list[Action]:
    """It is over when steps have been as short as before for a while."""
    slow = state.slowdowns
    incident_id = slow.drop_incident
    incident = state.incidents[incident_id]
    limit_s = WELL_FACTOR * incident.evidence["usual"]["step_s"]
    if any(parts.step_s > limit_s for parts in slow.parts[-WELL:]):
        return []
    slow.drop_incident = ""
    slow.parts = slow.parts[-WELL:]
    said = Say(text=f"incident {incident_id} is over: steps are as short as before", level="good")
    return [change(state, incident_id, recovered_s=now_s), said]
