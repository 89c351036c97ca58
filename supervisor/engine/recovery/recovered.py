"""Incidents that training is past."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action, Incident, ranks_of
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import Attempt, State

ANYBODY = -1
"""In place of a rank: whoever is furthest."""


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
            step += (
                "; not all ranks met its batches again, so none were left out" if _has_unmet(state, incident) else ""
            )
            actions.append(announce(f"training is past incident {incident_id} ({incident.cause}){step}", level="good"))
    return actions


def _has_unmet(state: State, incident: Incident) -> bool:
    """Whether its batches were to be left out, and were not: the order of samples is another, say."""
    is_wanted = "batches_to_leave_out" in incident.evidence
    return is_wanted and "left_out_batches" not in incident.evidence and incident.id == state.mending_incident


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
