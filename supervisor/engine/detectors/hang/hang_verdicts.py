"""From a finding to a verdict: for how long it has been so, for how long it may be so, and what is told and done."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.detectors.hang import stalls
from guardrun.supervisor.engine.incidents.evidence import of_collectives, of_judged, of_readings, stack_of
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.actions import Action, Say
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.dataloader_workers import of_workers
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.judged_snapshot import JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity
from guardrun.supervisor.engine.observation.rank_findings import wrong_with
from guardrun.supervisor.engine.observation.stack_grouping import evidence_groups
from guardrun.supervisor.engine.recovery.launcher_orders import stop_for
from guardrun.supervisor.engine.state.incidents import change, open_incident, write
from guardrun.supervisor.engine.state.state import State, attempt_of, silence_began_s

WATCHED_LOOK_S = 60.0
"""Between looks at a hang that is only watched."""


def lasted_s(state: State, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been as it is: since the last progress, or since anything of the culprits moved."""
    attempt, suspicion = attempt_of(state), state.suspicion
    assert suspicion is not None
    if found.is_proof:
        return now_s - min(attempt.stopped.get(rank, now_s) for rank in found.culprits)
    if found.doing is RankActivity.COLLECTING:
        return now_s - min((k.gc_since_s for k in looks if k.gc_since_s), default=now_s)
    began_s = silence_began_s(attempt)
    for rank in found.culprits or found.waiting:
        began_s = max(began_s, suspicion.unmoved_since_s.get(rank, 0.0))
    return now_s - began_s


def told_s(state: State, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been so for all that is known. Patience is the more careful: it counts what was looked at."""
    suspicion = state.suspicion
    assert suspicion is not None
    if found.is_proof or found.doing is RankActivity.COLLECTING:
        return lasted_s(state, found, looks, now_s)
    moved = [suspicion.moved_s.get(rank, 0.0) for rank in found.culprits or found.waiting]
    return now_s - max([silence_began_s(attempt_of(state)), *moved])


def left_s(state: State, found: Finding, seen: JudgedSnapshot, now_s: float) -> float:
    """How much longer it may be so before it is a hang; 0 or less: it is one."""
    lasted = lasted_s(state, found, seen.event.ranks, now_s)
    if found.is_proof or found.is_certain:
        return found.patience_s - lasted
    # The job as a whole must have been silent for longer than is usual for it, and for this place.
    usual_s = max(
        state.gaps.suspicious_after_s(state.settings.floor_s), stalls.MARGIN * stalls.known_s(state, found, seen)
    )
    patience_s = stalls.patience_s(state, found, seen)
    if patience_s >= NEVER_S:
        return NEVER_S
    usual_s = min(usual_s, max(state.settings.hard_timeout_s, patience_s)) if state.settings.hard_timeout_s else usual_s
    return max(patience_s - lasted, usual_s - (now_s - silence_began_s(attempt_of(state))))


def verdict(state: State, found: Finding, seen: JudgedSnapshot, now_s: float) -> list[Action]:
    """It is a hang. Open (or take up again) its incident, and act where guardrun may."""
    by_rank, looks = seen.by_rank, seen.event.ranks
    attempt, suspicion = attempt_of(state), state.suspicion
    assert suspicion is not None
    state.is_detail_bad = state.is_detail_bad or seen.matched.is_uneven
    lasted = told_s(state, found, looks, now_s)
    may_act = suspicion.is_forced or (state.settings.act and not state.is_held and not is_near_end(state))
    known = suspicion.incident_id
    if not known and found.doing is RankActivity.COLLECTING:
        keys = [state.detectors.gc_pause.key(attempt.number, rank) for rank in found.culprits]
        known = next((state.detected[key] for key in keys if key), "")
    if known and not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        return []
    summary = hang_sentence(attempt, found, by_rank, lasted)
    evidence = evidence_of(state, found, by_rank, looks, lasted) | of_readings(seen.event.readings)
    if loops := {r: suspicion.loops[r].spots for r in found.culprits if r in suspicion.loops}:
        evidence["seen_at"] = {str(rank): spots for rank, spots in loops.items()}
    stall = suspicion.stall
    onset_s = max(now_s - lasted, 0.0)
    # A script that has come to its end is not started anew because its process lingers.
    action = "restart" if may_act and found.doing is not RankActivity.LEAVING else "none"
    actions: list[Action] = []
    if known:
        actions.append(change(state, known, evidence=evidence, summary=summary, action=action, acted_s=now_s))
    else:
        known = open_incident(
            state,
            kind="hang",
            cause=found.cause,
            confidence=found.confidence,
            summary=summary,
            culprits=found.culprits,
            onset_s=onset_s,
            now_s=now_s if stall is None else stall.told_s,
            acted_s=now_s if may_act else None,
            evidence=evidence,
            looks=list(dict.fromkeys([*(stall.looks if stall is not None else []), *suspicion.looks[-2:]])),
            action=action,
        ).id
        said = f"incident {known}: {state.incidents[known].summary}"
        actions += [Say(text=said, level="bad"), write(state, known, is_new=True)]
        actions += _tell_stack_trouble(state, looks)
    if may_act:
        if not (found.is_proof or found.is_certain) and (place := stalls.place_of(found, seen)):
            state.stops_at[place] = state.stops_at.get(place, 0) + 1
        return actions + stop_for(state, known, onset_s=onset_s, now_s=now_s)
    suspicion.incident_id = known
    suspicion.next_look_s = now_s + WATCHED_LOOK_S
    return [*actions, Say(text=f"nothing is changed: {_why_not(state)}", level="info")]


def is_near_end(state: State) -> bool:
    """Whether a rank has come to its end, so that a restart would repeat what is done."""
    return stalls.has_ended(state)


def _why_not(state: State) -> str:
    if state.is_held:
        return "held by a person"
    return (
        "[policy] act = false" if not state.settings.act else "a rank has come to its end, so the run is near its own"
    )


def evidence_of(
    state: State, found: Finding, by_rank: dict[int, Judgement], looks: list[RankLook], lasted: float
) -> dict[str, Any]:
    """What was measured, as incident.json shows it. Needs no suspicion: an answer on demand has the same evidence."""
    evidence: dict[str, Any] = {
        "silent_s": round(lasted, 1),
        "suspected_after_s": round(state.gaps.suspicious_after_s(state.settings.floor_s), 1),
        "waiting": found.waiting,
        "ranks": of_judged(attempt_of(state), by_rank, found.culprits),
        "stack": stack_of(looks, found.culprits or found.waiting),
    }
    evidence |= of_collectives(match(looks), looks)
    if wrong := wrong_with(state, found.culprits):
        evidence["node_findings"] = wrong
    if batch := next((look.batch for look in looks if look.global_rank in found.culprits[:1] and look.batch), None):
        evidence["data"] = batch
    if groups := evidence_groups(looks, found.culprits):
        evidence["stack_groups"] = groups
    if workers := of_workers(looks, found.culprits):
        evidence["workers"] = workers
    if troubles := _stack_troubles(looks):
        evidence["stack_troubles"] = troubles
    if found.why_nobody:
        evidence["why_no_culprit"] = found.why_nobody
    return evidence


def _stack_troubles(looks: list[RankLook]) -> list[str]:
    """Why the ranks' own stacks are not the usual ones, each reason once."""
    return sorted({look.process.trouble for look in looks if look.process.trouble})


def _tell_stack_trouble(state: State, looks: list[RankLook]) -> list[Action]:
    """Once a run: that the stacks are not as good as they could be is worth a person's hand."""
    troubles = _stack_troubles(looks)
    if not troubles or "stacks" in state.notes:
        return []
    state.notes.append("stacks")
    return [Say(text="; ".join(troubles[:3]), level="warn")]
