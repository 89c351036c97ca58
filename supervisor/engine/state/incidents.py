"""Incidents as they are remembered, and put on disk; and the same place twice, in this run or in runs before it.

A place is a short text: the cause and where in the user's code (`exception ValueError in load_sample (data.py)`),
else which rank (`segfault on rank 3`). It has no line numbers, paths or values, so that it stays the same while the
script is edited elsewhere, and when it runs from another folder. Only places in code are looked up in earlier runs:
that the same rank number was killed before says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Culprit, Incident, WriteIncident, ranks_of
from guardrun.supervisor.engine.model.events import PastPlace
from guardrun.supervisor.engine.state.state import Attempt, State

MAX_EARLIER = 20
"""Incidents of this run that are named by id."""
_SPOT = re.compile(r"^(.*) \((.*?)(?::\d+)?\)$")
_IN = " in "


def culprits_of(attempt: Attempt, ranks: list[int], devices: Mapping[int, ev.Device]) -> list[Culprit]:
    """As incident.json has them."""
    return [
        Culprit(
            rank=r,
            local_rank=known.rank.local_rank,
            node=known.rank.node,
            pid=known.rank.pid,
            gpu=devices[r].index if r in devices else None,
        )
        for r in ranks
        if (known := attempt.ranks.get(r))
    ]


def write(state: State, incident_id: str, is_new: bool = False) -> Action:
    """The action that puts an incident, as it is now, on disk."""
    return WriteIncident(incident=state.incidents[incident_id], is_new=is_new)


def change(state: State, incident_id: str, **changes: Any) -> Action:
    """Change an incident and put it on disk."""
    incident = msgspec.structs.replace(state.incidents[incident_id], **changes)
    if "evidence" in changes or "summary" in changes:
        incident = told_again(incident, list(state.incidents.values()), state.past)
    state.incidents[incident_id] = incident
    return write(state, incident_id)


def on_history_loaded(state: State, event: ev.HistoryLoaded, now_s: float) -> list[Action]:
    """Earlier runs are known now: incidents that were already told say so, too."""
    state.past = {place.place: place for place in event.places}
    state.resumes = state.resumes or event.resumes
    actions: list[Action] = []
    for incident in list(state.incidents.values()):
        place = incident.evidence.get("place")
        if place in state.past and "earlier_runs" not in incident.evidence.get("recurrence", {}):
            actions.append(change(state, incident.id, evidence=incident.evidence))
    return actions


def place_of(cause: str, ranks: list[int], evidence: dict[str, Any]) -> str:
    """The place of an incident, from its evidence; empty where nothing tells it. ranks: its culprits."""
    spot = str(evidence.get("spot", "")) or _judged_spot(ranks, evidence)
    if match := _SPOT.match(spot):
        error = str(evidence.get("error", "")).rsplit(".", 1)[-1]
        return f"{cause} {error}{_IN}{match[1]} ({match[2]})".replace("  ", " ").replace(f" {_IN}", _IN)
    return f"{cause} on rank {min(ranks)}" if ranks else ""


def _judged_spot(ranks: list[int], evidence: dict[str, Any]) -> str:
    """Where the first culprit was seen, as hangs have it."""
    judged = evidence.get("ranks")
    for one in judged if isinstance(judged, list) else []:
        if isinstance(one, dict) and one.get("rank") in ranks and one.get("at"):
            return str(one["at"])
    return ""


def told_again(incident: Incident, others: list[Incident], past: dict[str, PastPlace]) -> Incident:
    """The incident with its place in its evidence, and, where that was seen before, with words of it.

    others: the run's incidents; those with greater ids don't count. Saying it twice changes nothing.
    """
    place = str(incident.evidence.get("place", ""))
    if not place:
        place = place_of(incident.cause, ranks_of(incident.culprits), incident.evidence)
    if not place:
        return incident
    earlier = [o.id for o in others if o.id < incident.id and o.evidence.get("place") == place]
    seen = past.get(place) if is_in_code(place) else None
    evidence = {**incident.evidence, "place": place}
    before = evidence.pop("recurrence", None)
    summary = incident.summary
    if isinstance(before, dict):
        summary = summary.removesuffix(f"; {before.get('said', '')}.").removesuffix(".") + "."
    if earlier or seen:
        said = _said(place, len(earlier), seen)
        evidence["recurrence"] = {
            "in_run": len(earlier) + 1,
            "earlier": earlier[-MAX_EARLIER:],
            **({"earlier_runs": seen.runs, "last": seen.last} if seen else {}),
            "said": said,
        }
        summary = f"{summary.removesuffix('.')}; {said}."
    return msgspec.structs.replace(incident, evidence=evidence, summary=summary)


def is_in_code(place: str) -> bool:
    """Whether it is a place in code, and not just a rank."""
    return _IN in place


def _said(place: str, earlier: int, seen: PastPlace | None) -> str:
    where = "at this place" if is_in_code(place) else "on this rank"
    parts = []
    if earlier:
        parts.append(f"the {ordinal(earlier + 1)} time {where} in this run")
    if seen:
        runs = f"{seen.runs} earlier run{'s' if seen.runs != 1 else ''}"
        parts.append(f"seen in {runs}, last on {seen.last}" if seen.last else f"seen in {runs}")
    return ", ".join(parts)


def ordinal(number: int) -> str:
    """`2nd`."""
    tail = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{tail}"
