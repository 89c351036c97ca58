"""From a finding to a verdict: for how long it has been so, for how long it may be so, and what is told and done."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core.actions import Action, Say
from guardrun.supervisor.core.collectives import match
from guardrun.supervisor.core.evidence import of_collectives, of_judged, of_readings, stack_of
from guardrun.supervisor.core.finding import Finding
from guardrun.supervisor.core.grouping import evidence_groups
from guardrun.supervisor.core.incidents import change, open_incident, write
from guardrun.supervisor.core.judge import Doing, Judgement
from guardrun.supervisor.core.looks import RankLook
from guardrun.supervisor.core.nodes import wrong_with
from guardrun.supervisor.core.orders import stop_for
from guardrun.supervisor.core.seen import Seen
from guardrun.supervisor.core.sentences import hang_sentence
from guardrun.supervisor.core.state import State, attempt_of, silence_began_s
from guardrun.supervisor.core.workers import of_workers

STALL_MARGIN = 2.0
"""A stall that once ended by itself after d seconds is given twice that the next time, at the same place."""
NEVER_S = 1e9
WATCHED_LOOK_S = 60.0
"""Between looks at a hang that is only watched."""


def lasted_s(state: State, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been as it is: since the last progress, or since anything of the culprits moved."""
    attempt, suspicion = attempt_of(state), state.suspicion
    assert suspicion is not None
    if found.is_proof:
        return now_s - min(attempt.stopped.get(rank, now_s) for rank in found.culprits)
    if found.doing is Doing.COLLECTING:
        return now_s - min((k.gc_since_s for k in looks if k.gc_since_s), default=now_s)
    began_s = silence_began_s(attempt)
    for rank in found.culprits or found.waiting:
        began_s = max(began_s, suspicion.unmoved_since_s.get(rank, 0.0))
    return now_s - began_s


def told_s(state: State, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been so for all that is known. Patience is the more careful: it counts what was looked at."""
    suspicion = state.suspicion
    assert suspicion is not None
    if found.is_proof or found.doing is Doing.COLLECTING:
        return lasted_s(state, found, looks, now_s)
    moved = [suspicion.moved_s.get(rank, 0.0) for rank in found.culprits or found.waiting]
    return now_s - max([silence_began_s(attempt_of(state)), *moved])


def left_s(state: State, found: Finding, seen: Seen, now_s: float) -> float:
    """How much longer it may be so before it is a hang; 0 or less: it is one."""
    lasted, by_rank = lasted_s(state, found, seen.event.ranks, now_s), seen.by_rank
    if found.is_proof or found.is_certain:
        return found.patience_s - lasted
    # The job as a whole must have been silent for longer than is usual for it, and for this place.
    usual_s = state.gaps.suspicious_after_s(state.settings.floor_s)
    places = {by_rank[rank].place for rank in found.culprits if rank in by_rank}
    usual_s = max([usual_s, *(STALL_MARGIN * state.remembered.get(place, 0.0) for place in places)])
    patience_s, hard_s = found.patience_s, state.settings.hard_timeout_s
    if not attempt_of(state).has_progress and not found.waiting:
        # It may wait for data that another job prepares, or have no steps at all: nobody is seen to be held up by it.
        patience_s = hard_s or NEVER_S
    if hard_s:
        usual_s, patience_s = min(usual_s, hard_s), min(patience_s, hard_s)
    return max(patience_s - lasted, usual_s - (now_s - silence_began_s(attempt_of(state))))


def verdict(state: State, found: Finding, seen: Seen, now_s: float) -> list[Action]:
    """It is a hang. Open (or take up again) its incident, and act where guardrun may."""
    by_rank, looks = seen.by_rank, seen.event.ranks
    attempt, suspicion = attempt_of(state), state.suspicion
    assert suspicion is not None
    state.is_detail_bad = state.is_detail_bad or seen.matched.is_uneven
    lasted = told_s(state, found, looks, now_s)
    may_act = state.settings.act and not state.is_held
    known = suspicion.incident_id
    if not known and found.doing is Doing.COLLECTING:
        known = next((attempt.gc_incidents[r] for r in found.culprits if r in attempt.gc_incidents), "")
    if known and not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        return []
    summary = hang_sentence(attempt, found, by_rank, lasted)
    evidence = evidence_of(state, found, by_rank, looks, lasted) | of_readings(seen.event.readings)
    if loops := {r: suspicion.loops[r].spots for r in found.culprits if r in suspicion.loops}:
        evidence["seen_at"] = {str(rank): spots for rank, spots in loops.items()}
    onset_s = max(now_s - lasted, 0.0)
    # A script that has come to its end is not started anew because its process lingers.
    action = "restart" if may_act and found.doing is not Doing.LEAVING else "none"
    actions: list[Action] = []
    if known:
        actions.append(change(state, known, evidence=evidence, summary=summary, action=action))
    else:
        known = open_incident(
            state,
            kind="hang",
            cause=found.cause,
            confidence=found.confidence,
            summary=summary,
            culprits=found.culprits,
            onset_s=onset_s,
            now_s=now_s,
            evidence=evidence,
            looks=list(suspicion.looks[-2:]),
            action=action,
        ).id
        said = f"incident {known}: {state.incidents[known].summary}"
        actions += [Say(text=said, level="bad"), write(state, known, is_new=True)]
        actions += _tell_stack_trouble(state, looks)
    if may_act:
        return actions + stop_for(state, known, onset_s=onset_s, now_s=now_s)
    suspicion.incident_id = known
    suspicion.next_look_s = now_s + WATCHED_LOOK_S
    why = "held by a person" if state.is_held else "[policy] act = false"
    return [*actions, Say(text=f"nothing is changed: {why}", level="info")]


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
