"""What a node's judges say, tied to training: incidents of a device, a disk or a network, and what they ask for.

A finding that only matters if training feels it (throttling, a starved CPU) becomes an incident when steps take longer
since it began, and is a note until then. The others are incidents at once: the judges have their persistence. Devices
that no rank of this run trains on are somebody else's.

`isolate` keeps a node out of what comes: the record of quarantined nodes is the edge's, and an attempt that ends in
failure is not started again there. One that still gets on is left alone: slow does not mean evict.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.incidents.sentences import seconds_text, who
from guardrun.supervisor.engine.membership.node_contact import still_out
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Isolate, Say
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.rank_findings import DEVICE, ranks_on
from guardrun.supervisor.engine.recovery.launcher_orders import stop_for
from guardrun.supervisor.engine.state.incidents import change, open_incident, write
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import State, attempt_of
from guardrun.supervisor.engine.state.step_rate import SLOW, Slowdown, slowdown
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.responses import said_for

FELT = {"throttle": "thermal_throttle", "thermal": "thermal_throttle", "cpu_starved": "cpu_starved"}
"""Findings that are an incident only if training feels them → its cause."""
KINDS = {
    "gpu_ecc": "node",
    "gpu_xid": "node",
    "gpu_remap": "node",
    "gpu_link": "node",
    "network": "node",
    "disk": "node",
    "gpu_lost": "crash",
    "quarantined": "node",
}
"""Those that are one in any case → its kind, as the contract has it. What is in neither is for `guardctl node`."""
CONFIDENCE = 0.9
CONSIDER_S = 0.9
"""A node reports once a second; a thousand nodes must not have the same looked at a thousand times."""
UNFELT_S = 60.0
"""After so long without effect on the steps, that is said."""
HEAT = frozenset({"throttle", "thermal"})
UNSEEN_S = 300.0
"""Heat that lasts so long is told where nobody can say what training feels: no steps are seen."""


def on_node_findings_reported(state: State, event: ev.NodeFindingsReported, now_s: float) -> list[Action]:
    """Note what is said; tell what follows as soon as ranks run."""
    watch = state.nodes
    watch.devices.update(event.devices)
    actions: list[Action] = []
    for finding in event.findings:
        key = f"{event.node}/{finding.id}"
        if finding.is_over:
            watch.findings.pop(key, None)
            actions += _over(state, key, now_s)
        else:
            watch.findings[key] = finding
    if state.phase is Phase.STOPPING:
        return actions + _while_stopping(state, now_s)
    return actions + on_report(state, now_s)


def _while_stopping(state: State, now_s: float) -> list[Action]:
    """What sensors say right after a rank fell decides where the next attempt goes. The rest waits until ranks run."""
    watch = state.nodes
    return [
        action
        for key, finding in list(watch.findings.items())
        if key not in watch.incidents and finding.cause in KINDS
        if _response(state, finding.cause, finding) is Response.ISOLATE
        for action in _consider(state, key, finding, now_s)
    ]


def forget_findings(state: State) -> None:
    """A new guardrun: its nodes say anew what is wrong now. A node that was isolated may have been repaired since."""
    watch = state.nodes
    watch.findings = {}
    told = watch.incidents.items()
    watch.incidents = {key: known for key, known in told if state.incidents[known].action != "isolate_node"}


def on_not_isolated(state: State, event: ev.NotIsolated, now_s: float) -> list[Action]:
    """The node is as it was."""
    if state.nodes.isolated.get(event.node) != event.incident:
        return []
    del state.nodes.isolated[event.node]
    state.nodes.unsettled.pop(event.node, None)
    said = Say(text=f"{event.node} could not be put under quarantine: {event.why}", level="warn")
    return [change(state, event.incident, action="none"), said]


def on_isolation_settled(state: State, event: ev.IsolationSettled, now_s: float) -> list[Action]:
    """Nothing of it is to be done again."""
    if state.nodes.unsettled.get(event.node) == event.incident:
        del state.nodes.unsettled[event.node]
    known = state.incidents.get(event.incident)
    if not event.how or state.fleet is None or known is None or known.cause != "node_lost":
        return []
    member = state.fleet.members.get(event.node)
    if member is not None and member.standing in (Standing.READY, Standing.SILENT):
        return [still_out(event.node, event.how, event.incident)]  # it came back in the same moment
    state.nodes.kept_out[event.node] = event.how
    return []


def on_report(state: State, now_s: float) -> list[Action]:
    """Whatever is known of nodes and not told yet, held against training as it is now."""
    if state.phase is not Phase.RUNNING:
        return []
    state.nodes.next_s = now_s + CONSIDER_S
    actions: list[Action] = []
    for key, finding in list(state.nodes.findings.items()):
        if key not in state.nodes.incidents and state.phase is Phase.RUNNING:
            actions += _consider(state, key, finding, now_s)
    return actions


def _consider(state: State, key: str, finding: Finding, now_s: float) -> list[Action]:
    ranks = ranks_on(state, key, finding)
    if finding.subject.startswith(DEVICE) and not ranks:
        return []
    if finding.cause in KINDS:
        return _tell(state, key, finding, ranks, now_s, kind=KINDS[finding.cause], cause=finding.cause)
    if finding.cause not in FELT:
        return []
    slower = slowdown(attempt_of(state).steprate, finding.since_s, now_s)
    if slower is None:
        is_unseen = len(attempt_of(state).steprate.steps) < 2 and now_s - finding.since_s >= UNSEEN_S
        if not is_unseen or finding.cause not in HEAT:
            return []
        return _tell(state, key, finding, ranks, now_s, kind="node", cause="thermal")
    if slower.factor < SLOW:
        return _note(state, finding, ranks, now_s)
    return _tell(state, key, finding, ranks, now_s, kind="slowdown", cause=FELT[finding.cause], slower=slower)


def _note(state: State, finding: Finding, ranks: list[int], now_s: float) -> list[Action]:
    """What training does not feel is said once."""
    note = f"unfelt {finding.id}"
    if note in state.notes or now_s - finding.since_s < UNFELT_S:
        return []
    state.notes.append(note)
    where = f"{who(attempt_of(state), ranks)}: " if ranks else ""
    return [Say(text=f"{where}{finding.summary.rstrip('.')}; steps take no longer for it", level="info")]


def _tell(
    state: State,
    key: str,
    finding: Finding,
    ranks: list[int],
    now_s: float,
    *,
    kind: str,
    cause: str,
    slower: Slowdown | None = None,
) -> list[Action]:
    node = key.split("/", 1)[0]
    felt = (
        f"; steps have taken {slower.factor:.1f} times as long since ({seconds_text(slower.since_s)}, "
        f"before {seconds_text(slower.before_s)})"
        if slower
        else ""
    )
    where = who(attempt_of(state), ranks) if ranks else node
    response = _response(state, cause, finding)
    evidence: dict[str, Any] = {
        **finding.evidence,
        "finding": finding.id,
        "subject": finding.subject,
        "node": node,
        "response": response.value,
        "place": f"{cause} of {finding.subject} on {node}",
    }
    if slower:
        evidence["step_s"] = {"before": round(slower.before_s, 4), "since": round(slower.since_s, 4)}
    incident = open_incident(
        state,
        kind=kind,
        cause=cause,
        confidence=CONFIDENCE,
        summary=f"{where}: {finding.summary.rstrip('.')}{felt}.",
        culprits=ranks,
        onset_s=max(0.0, finding.since_s),
        now_s=now_s,
        evidence=evidence,
        looks=[],
        action={Response.RESTART: "restart", Response.ISOLATE: "isolate_node"}.get(response, "none"),
    )
    # Progress does not end it: it is over when the node is well.
    state.open_incidents.remove(incident.id)
    state.nodes.incidents[key] = incident.id
    said = Say(text=f"incident {incident.id}: {incident.summary}", level="bad" if kind != "slowdown" else "warn")
    if finding.advice and not incident.advice:
        change(state, incident.id, advice=finding.advice)
    actions: list[Action] = [said, write(state, incident.id, is_new=True)]
    if response is Response.ISOLATE:
        state.nodes.isolated[node] = incident.id
        actions.append(
            Isolate(
                node=node,
                incident=incident.id,
                cause=cause,
                summary=incident.summary,
                evidence_s=finding.told_s,
                finding=finding.id,
            )
        )
        then = "training goes on, and" if state.phase is Phase.RUNNING else "training"
        actions.append(Say(text=f"{node} is put under quarantine: {then} is not started again there", level="warn"))
    elif response is Response.RESTART:
        actions += stop_for(state, incident.id, onset_s=now_s, now_s=now_s)
    return actions


def _response(state: State, cause: str, finding: Finding) -> Response:
    """The user's word for the cause, else the judge's for this finding; nothing where guardrun may not act."""
    if not state.settings.act or state.is_held:
        return Response.NOTE
    said = said_for(finding, state.settings.responses, cause)
    if said is not None:
        return said
    return Response.NOTE if finding.cause in FELT else finding.response


def _over(state: State, key: str, now_s: float) -> list[Action]:
    incident_id = state.nodes.incidents.pop(key, "")
    if not incident_id:
        return []
    incident = state.incidents[incident_id]
    said = Say(text=f"incident {incident_id} is over: {incident.evidence['subject']} is well again", level="good")
    return [change(state, incident_id, recovered_s=now_s), said]
