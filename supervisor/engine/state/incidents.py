"""Incidents as they are remembered, and put on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from guardrun.supervisor.engine.incidents.recurrence import told_again
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Culprit, WriteIncident
from guardrun.supervisor.engine.state.state import Attempt, State


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
