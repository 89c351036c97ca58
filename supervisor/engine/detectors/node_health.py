"""What a node's judges say, tied to training: incidents of a device, a disk or a network, and what they ask for.

A finding that only matters if training feels it (throttling, a starved CPU) becomes an incident when steps take longer
since it began, and is a note until then. The others are incidents at once: the judges have their persistence. Devices
that no rank of this run trains on are somebody else's.

`isolate` keeps a node out of what comes: the record of quarantined nodes is the edge's, and an attempt that ends in
failure is not started again there. One that still gets on is left alone: slow does not mean evict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.incidents.sentences import seconds_text, who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import DEVICE, RunView, ranks_on
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Remark, Verdict
from guardrun.supervisor.engine.observation.step_times import SLOWER as SLOW
from guardrun.supervisor.engine.observation.step_times import Slowdown, slowdown
from guardrun.supervisor.health.base.findings import Finding, Response, said_for

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


class NodeHealth(msgspec.Struct, kw_only=True):
    """What is wrong with which part of which node, and whether this run's training has to do with it."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeFindingsReported, ev.NodeReport, ev.RunContinued)
    findings: dict[str, Finding] = {}
    """`NODE/ID` → what is wrong there right now."""
    reported: dict[str, str] = {}
    """`NODE/ID` → key of the incident that reports it."""
    devices: dict[int, ev.Device] = {}
    """Per global rank."""
    count: int = 0
    """Of incidents."""
    unfelt: list[str] = []
    """Ids of findings of which it was said that training does not feel them."""
    unsensed: list[str] = []
    """Types of devices of which it was said that nothing is sensed."""
    next_s: float = 0.0
    """They are not held against training again before this, however many nodes report meanwhile."""

    def observe(
        self, event: ev.NodeFindingsReported | ev.NodeReport | ev.RunContinued, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        """Note what is said of nodes; report what follows as soon as ranks run."""
        if isinstance(event, ev.RunContinued):
            self._forget(view)
            return ()
        if isinstance(event, ev.NodeReport):
            is_due = self.findings and now_s >= self.next_s
            is_current = view.attempt is not None and event.attempt == view.attempt.number
            return self._consider_all(view, now_s) if is_due and is_current else ()
        for rank, device in event.devices.items():
            self.devices.pop(rank, None)
            if device is not None:
                self.devices[rank] = device
        verdicts: list[Verdict] = list(self._note_unsensed(event, view))
        for finding in event.findings:
            key = f"{event.node}/{finding.id}"
            if not finding.is_over:
                self.findings[key] = finding
                continue
            self.findings.pop(key, None)
            if known := self.reported.pop(key, ""):
                verdicts.append(Over(key=known, text=f"{finding.subject} is well again"))
        if view.phase is Phase.STOPPING:
            return [*verdicts, *self._while_stopping(view, now_s)]
        return [*verdicts, *self._consider_all(view, now_s)]

    def _note_unsensed(self, event: ev.NodeFindingsReported, view: RunView) -> Sequence[Verdict]:
        """Devices that have no sensors here are named once a run, whichever node has them."""
        said = []
        for kind, ranks in sorted(event.unsensed.items()):
            if kind not in self.unsensed and view.attempt is not None:
                self.unsensed.append(kind)
                whose = who(view.attempt, ranks)
                said.append(Remark(text=f"{whose}: nothing is sensed of {kind} devices (heat, errors, links: Unknown)"))
        return said

    def _forget(self, view: RunView) -> None:
        """A new guardrun: its nodes say anew what is wrong now. One that was isolated may have been repaired since."""
        self.findings, self.devices = {}, {}
        known = {key: view.incident_of(name) for key, name in self.reported.items()}
        isolated = {key for key, incident in known.items() if incident and incident.action == "isolate_node"}
        self.reported = {key: name for key, name in self.reported.items() if key not in isolated}

    def _while_stopping(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        """What is said right after a rank fell decides where the next attempt goes. The rest waits until ranks run."""
        return [
            verdict
            for key, finding in self.findings.items()
            if key not in self.reported and finding.cause in KINDS
            if _response(view, finding.cause, finding) is Response.ISOLATE
            for verdict in self._consider(view, key, finding, now_s)
        ]

    def _consider_all(self, view: RunView, now_s: float) -> Sequence[Verdict]:
        if view.phase is not Phase.RUNNING:
            return ()
        self.next_s = now_s + CONSIDER_S
        verdicts: list[Verdict] = []
        for key, finding in self.findings.items():
            if key not in self.reported:
                verdicts += self._consider(view, key, finding, now_s)
            if any(isinstance(one, Detected) and one.stops_since_s is not None for one in verdicts):
                break  # the attempt ends for it: the others wait for the next one
        return verdicts

    def _consider(self, view: RunView, key: str, finding: Finding, now_s: float) -> Sequence[Verdict]:
        assert view.attempt is not None
        ranks = ranks_on(view, key, finding)
        if finding.subject.startswith(DEVICE) and not ranks:
            return ()
        if finding.cause in KINDS:
            return self._report(view, key, finding, ranks, now_s, kind=KINDS[finding.cause], cause=finding.cause)
        if finding.cause not in FELT:
            return ()
        rate = view.attempt.steprate
        slower = slowdown(rate, finding.since_s, now_s)
        if slower is None:
            is_unseen = len(rate.steps) < 2 and now_s - finding.since_s >= UNSEEN_S
            if not is_unseen or finding.cause not in HEAT:
                return ()
            return self._report(view, key, finding, ranks, now_s, kind="node", cause="thermal")
        if slower.factor < SLOW:
            return self._note_unfelt(view, finding, ranks, now_s)
        return self._report(view, key, finding, ranks, now_s, kind="slowdown", cause=FELT[finding.cause], slower=slower)

    def _note_unfelt(self, view: RunView, finding: Finding, ranks: list[int], now_s: float) -> Sequence[Verdict]:
        """What training does not feel is said once."""
        if finding.id in self.unfelt or now_s - finding.since_s < UNFELT_S:
            return ()
        assert view.attempt is not None
        self.unfelt.append(finding.id)
        where = f"{who(view.attempt, ranks)}: " if ranks else ""
        return [Remark(text=f"{where}{finding.summary.rstrip('.')}; steps take no longer for it")]

    def _report(
        self,
        view: RunView,
        key: str,
        finding: Finding,
        ranks: list[int],
        now_s: float,
        *,
        kind: str,
        cause: str,
        slower: Slowdown | None = None,
    ) -> Sequence[Verdict]:
        assert view.attempt is not None
        node = key.split("/", 1)[0]
        felt = (
            f"; steps have taken {slower.factor:.1f} times as long since ({seconds_text(slower.since_s)}, "
            f"before {seconds_text(slower.before_s)})"
            if slower
            else ""
        )
        where = who(view.attempt, ranks) if ranks else node
        response = _response(view, cause, finding)
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
        is_isolated = response is Response.ISOLATE
        self.count += 1
        self.reported[key] = f"node_health/{self.count}"
        return [
            Detected(
                key=self.reported[key],
                kind=kind,
                cause=cause,
                confidence=CONFIDENCE,
                summary=f"{where}: {finding.summary.rstrip('.')}{felt}.",
                culprits=ranks,
                onset_s=max(0.0, finding.since_s),
                evidence=evidence,
                advice=advice_for(cause, evidence) or finding.advice,
                level="bad" if kind != "slowdown" else "warn",
                action={Response.RESTART: "restart", Response.ISOLATE: "isolate_node"}.get(response, "none"),
                stops_since_s=now_s if response is Response.RESTART else None,
                node=node if is_isolated else "",
                finding=finding.id if is_isolated else "",
                evidence_s=finding.told_s,
            )
        ]


def _response(view: RunView, cause: str, finding: Finding) -> Response:
    """The user's word for the cause, else the judge's for this finding; nothing where guardrun may not act."""
    if not view.may_act:
        return Response.NOTE
    said = said_for(finding, view.settings.responses, cause)
    if said is not None:
        return said
    return Response.NOTE if finding.cause in FELT else finding.response
