"""What follows from detectors' verdicts: incidents, words, a node that is isolated. Nobody else acts on them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.detectors.detector import Changed, Detected, Over, Verdict
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Incident, Isolate, Say
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.incidents import change, open_incident, write
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.health.base.findings import Response


def observe(state: State, event: object, now_s: float) -> list[Action]:
    """Have the detectors take in an event, or what was derived from one, and act on what they say."""
    actions: list[Action] = []
    for detector in state.detectors.observers(type(event)):
        if verdicts := detector.observe(event, state, now_s):
            actions += decide(state, verdicts, now_s)
    if isinstance(event, ev.NodeReport) and state.phase is Phase.RUNNING and state.attempt is not None:
        window = state.step_times.observe(
            event, state.attempt.number, state.attempt.step, state.settings.window_s, now_s
        )
        if window is not None:
            actions += observe(state, window, now_s)
    return actions


def decide(state: State, verdicts: Sequence[Verdict], now_s: float) -> list[Action]:
    """Act on verdicts, in order."""
    actions: list[Action] = []
    for verdict in verdicts:
        if isinstance(verdict, Detected):
            actions += _open(state, verdict, now_s)
        elif isinstance(verdict, Changed):
            actions.append(change(state, state.detected[verdict.key], evidence=dict(verdict.evidence)))
        elif isinstance(verdict, Over):
            actions += _close(state, verdict, now_s)
        else:
            actions.append(Say(text=verdict.text, level="info"))
    return actions


def _open(state: State, verdict: Detected, now_s: float) -> list[Action]:
    incident = open_incident(
        state,
        kind=verdict.kind,
        cause=verdict.cause,
        confidence=verdict.confidence,
        summary=verdict.summary,
        culprits=list(verdict.culprits),
        onset_s=verdict.onset_s,
        now_s=now_s,
        evidence=dict(verdict.evidence),
        looks=list(verdict.looks),
        action="none",
    )
    if verdict.step is not None:
        state.incidents[incident.id] = msgspec.structs.replace(incident, step=verdict.step)
    if not verdict.ends_with_progress:
        state.open_incidents.remove(incident.id)
    state.detected[verdict.key] = incident.id
    said = Say(text=f"incident {incident.id}: {incident.summary}", level="warn")
    return [said, write(state, incident.id, is_new=True), *_isolate(state, verdict, incident, now_s)]


def _isolate(state: State, verdict: Detected, incident: Incident, now_s: float) -> list[Action]:
    """Keep the node from what comes, where the user has said so for this cause."""
    is_wanted = state.settings.responses.get(verdict.cause) == Response.ISOLATE.value
    if not verdict.node or not is_wanted or not state.settings.act or state.is_held:
        return []
    if verdict.node in state.nodes.isolated:
        return []
    state.nodes.isolated[verdict.node] = incident.id
    text = f"{verdict.node} is put under quarantine: training goes on, and is not started again there"
    return [
        change(state, incident.id, action="isolate_node"),
        Isolate(
            node=verdict.node, incident=incident.id, cause=verdict.cause, summary=incident.summary, evidence_s=now_s
        ),
        Say(text=text, level="warn"),
    ]


def _close(state: State, verdict: Over, now_s: float) -> list[Action]:
    incident_id = state.detected[verdict.key]
    if incident_id in state.open_incidents:
        state.open_incidents.remove(incident_id)
    said = Say(text=f"incident {incident_id} is over: {verdict.text}", level="good")
    return [change(state, incident_id, recovered_s=now_s), said]
