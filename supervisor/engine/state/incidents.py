"""Opening, changing and closing incidents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.incidents.recurrence import told_again
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Culprit, Incident, Say, WriteIncident, ranks_of
from guardrun.supervisor.engine.state.state import Attempt, State

ANYBODY = -1
"""In place of a rank: whoever is furthest."""


def open_incident(
    state: State,
    *,
    kind: str,
    cause: str,
    confidence: float,
    summary: str,
    culprits: list[int],
    onset_s: float,
    now_s: float,
    evidence: dict[str, Any],
    looks: list[str],
    action: str,
    acted_s: float | None = None,
) -> Incident:
    """Number and remember a new incident of the current attempt; `write` tells the edge."""
    attempt = state.attempt
    assert attempt is not None
    incident = Incident(
        id=f"{state.next_incident:03d}",
        attempt=attempt.number,
        kind=kind,
        cause=cause,
        confidence=confidence,
        summary=summary,
        culprits=culprits_of(attempt, culprits, state.nodes.devices),
        onset_s=onset_s,
        detected_s=now_s,
        step=attempt.step if attempt.has_progress or attempt.resumed_from else None,
        evidence=evidence,
        advice=advice_for(cause, evidence),
        action=action,
        acted_s=acted_s,
        looks=looks,
    )
    return remember(state, incident)


def remember(state: State, incident: Incident) -> Incident:
    """Take in an incident that has the next number."""
    incident = told_again(incident, list(state.incidents.values()), state.past)
    state.next_incident += 1
    state.incidents[incident.id] = incident
    state.open_incidents.append(incident.id)
    return incident


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


def close_recovered(state: State, now_s: float) -> list[Action]:
    """Mark those that training is past of as recovered."""
    attempt = state.attempt
    assert attempt is not None
    if attempt.is_guarded and not (attempt.has_resumed or attempt.is_blind or attempt.began_anew):
        return []  # the steps that it counts from are what it was told to resume from
    actions: list[Action] = []
    for incident_id in list(state.open_incidents):
        incident = state.incidents[incident_id]
        if incident_id == state.notice.incident_id:
            continue  # the job is still to end
        is_past = attempt.step > (incident.step or 0)
        if incident.attempt == attempt.number:
            # It ended by itself, or was only watched.
            is_past = _has_gone_on(attempt, incident)
        elif not attempt.step and not incident.step:
            is_past = _is_further(attempt, state.marks.get(incident_id, {}))
        if is_past:
            state.open_incidents.remove(incident_id)
            actions.append(change(state, incident_id, recovered_s=now_s))
            step = f" at step {attempt.step}" if attempt.step else ""
            actions.append(Say(text=f"training is past incident {incident_id} ({incident.cause}){step}", level="good"))
    return actions


def _has_gone_on(attempt: Attempt, incident: Incident) -> bool:
    """Whether its culprits have got somewhere since; anybody, where there are none."""
    ranks = [attempt.ranks[rank] for rank in ranks_of(incident.culprits) if rank in attempt.ranks]
    if not ranks or incident.kind != "hang":
        return attempt.progress_s > incident.detected_s
    return all(rank.progress_s > incident.detected_s for rank in ranks)


def mark(state: State, incident: Incident) -> None:
    """Remember how far an attempt without steps has come, which an incident ends: of its culprits, else of anybody."""
    attempt = state.attempt
    assert attempt is not None
    known = {rank: attempt.ranks[rank].progress for rank in ranks_of(incident.culprits) if rank in attempt.ranks}
    furthest = max((rank.progress for rank in attempt.ranks.values()), default=0)
    state.marks = {one: marks for one, marks in state.marks.items() if one in state.open_incidents}
    state.marks[incident.id] = known or {ANYBODY: furthest}


def _is_further(attempt: Attempt, marks: dict[int, int]) -> bool:
    """Whether a later attempt, of which no steps are seen, has reached something new: where it stopped, all begin."""
    if not marks:
        return attempt.has_progress
    furthest = max((rank.progress for rank in attempt.ranks.values()), default=0)
    return all(
        (furthest if number == ANYBODY or number not in attempt.ranks else attempt.ranks[number].progress) > reached
        for number, reached in marks.items()
    )


def on_good_end(state: State, now_s: float) -> list[Action]:
    """The run has come to its end: it is past whatever stopped it before."""
    actions = []
    for incident_id in list(state.open_incidents):
        if state.incidents[incident_id].kind in ("hang", "crash") and incident_id != state.notice.incident_id:
            state.open_incidents.remove(incident_id)
            actions.append(change(state, incident_id, recovered_s=now_s))
    return actions


def on_history_loaded(state: State, event: ev.HistoryLoaded, now_s: float) -> list[Action]:
    """Earlier runs are known now: incidents that were already told say so, too."""
    state.past = {place.place: place for place in event.places}
    state.past_stalls = dict(event.stalls)
    state.resumes = state.resumes or event.resumes
    actions: list[Action] = []
    for incident in list(state.incidents.values()):
        place = incident.evidence.get("place")
        if place in state.past and "earlier_runs" not in incident.evidence.get("recurrence", {}):
            actions.append(change(state, incident.id, evidence=incident.evidence))
    return actions
