"""From a finding to a verdict: for how long it has been so, for how long it may be so, and what is told and done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guardrun.supervisor.engine.detectors.hang import stalls
from guardrun.supervisor.engine.detectors.hang.memory import HangMemory
from guardrun.supervisor.engine.incidents.evidence import of_collectives, of_judged, of_readings, stack_of
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, silence_began_s
from guardrun.supervisor.engine.model.verdicts import Changed, Detected, Remark, Verdict
from guardrun.supervisor.engine.observation.collective_waits import match
from guardrun.supervisor.engine.observation.dataloader_workers import of_workers
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity
from guardrun.supervisor.engine.observation.rank_findings import wrong_with
from guardrun.supervisor.engine.observation.stack_grouping import evidence_groups

WATCHED_LOOK_S = 60.0
"""Between looks at a hang that is only watched."""


def lasted_s(memory: HangMemory, view: RunView, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been as it is: since the last progress, or since anything of the culprits moved."""
    attempt, suspicion = attempt_of(view), memory.suspicion
    assert suspicion is not None
    if found.is_proof:
        return now_s - min(attempt.stopped.get(rank, now_s) for rank in found.culprits)
    if found.doing is RankActivity.COLLECTING:
        return now_s - min((k.gc_since_s for k in looks if k.gc_since_s), default=now_s)
    began_s = silence_began_s(attempt)
    for rank in found.culprits or found.waiting:
        began_s = max(began_s, suspicion.unmoved_since_s.get(rank, 0.0))
    return now_s - began_s


def told_s(memory: HangMemory, view: RunView, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been so for all that is known. Patience is the more careful: it counts what was looked at."""
    suspicion = memory.suspicion
    assert suspicion is not None
    if found.is_proof or found.doing is RankActivity.COLLECTING:
        return lasted_s(memory, view, found, looks, now_s)
    moved = [suspicion.moved_s.get(rank, 0.0) for rank in found.culprits or found.waiting]
    return now_s - max([silence_began_s(attempt_of(view)), *moved])


def left_s(memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot, now_s: float) -> float:
    """How much longer it may be so before it is a hang; 0 or less: it is one."""
    lasted = lasted_s(memory, view, found, seen.event.ranks, now_s)
    if found.is_proof or found.is_certain:
        return found.patience_s - lasted
    # The job as a whole must have been silent for longer than is usual for it, and for this place.
    usual_s = max(
        view.gaps.suspicious_after_s(view.settings.floor_s), stalls.MARGIN * stalls.known_s(memory, found, seen)
    )
    patience_s = stalls.patience_s(memory, view, found, seen)
    if patience_s >= NEVER_S:
        return NEVER_S
    usual_s = min(usual_s, max(view.settings.hard_timeout_s, patience_s)) if view.settings.hard_timeout_s else usual_s
    return max(patience_s - lasted, usual_s - (now_s - silence_began_s(attempt_of(view))))


def verdict(memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot, now_s: float) -> Sequence[Verdict]:
    """It is a hang: its incident, or more of the one that there is, and the attempt's end where guardrun may act."""
    by_rank, looks = seen.by_rank, seen.event.ranks
    attempt, suspicion = attempt_of(view), memory.suspicion
    assert suspicion is not None
    lasted = told_s(memory, view, found, looks, now_s)
    may_act = suspicion.is_forced or (view.settings.act and not view.is_held and not is_near_end(view))
    known = suspicion.key
    if not known and found.doing is RankActivity.COLLECTING:
        known = next(filter(None, (view.detectors.gc_pause.key(attempt.number, rank) for rank in found.culprits)), "")
    if known and not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        return ()
    summary = hang_sentence(attempt, found, by_rank, lasted)
    evidence = evidence_of(view, found, by_rank, looks, lasted) | of_readings(seen.event.readings)
    if loops := {r: suspicion.loops[r].spots for r in found.culprits if r in suspicion.loops}:
        evidence["seen_at"] = {str(rank): spots for rank, spots in loops.items()}
    stall = suspicion.stall
    onset_s = max(now_s - lasted, 0.0)
    # A script that has come to its end is not started anew because its process lingers.
    action = "restart" if may_act and found.doing is not RankActivity.LEAVING else "none"
    if may_act and not (found.is_proof or found.is_certain) and (place := stalls.place_of(found, seen)):
        memory.stops_at[place] = memory.stops_at.get(place, 0) + 1
    verdicts: list[Verdict] = []
    if known:
        verdicts.append(
            Changed(
                key=known,
                evidence=evidence,
                summary=summary,
                action=action,
                acted_s=now_s,
                stops_since_s=onset_s,
                is_uneven=seen.matched.is_uneven,
            )
        )
    else:
        memory.count += 1
        suspicion.key = f"hang/{memory.count}"
        detected = Detected(
            key=suspicion.key,
            kind="hang",
            cause=found.cause,
            confidence=found.confidence,
            summary=summary,
            culprits=found.culprits,
            onset_s=onset_s,
            told_s=None if stall is None else stall.told_s,
            acted_s=now_s if may_act else None,
            evidence=evidence,
            looks=list(dict.fromkeys([*(stall.looks if stall is not None else []), *suspicion.looks[-2:]])),
            level="bad",
            ends_with_progress=True,
            action=action,
            stops_since_s=onset_s if may_act else None,
            is_uneven=seen.matched.is_uneven,
        )
        verdicts += [detected, *_tell_stack_trouble(memory, looks)]
    if not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        verdicts.append(Remark(text=f"nothing is changed: {_why_not(view)}"))
    return verdicts


def is_near_end(view: RunView) -> bool:
    """Whether a rank has come to its end, so that a restart would repeat what is done."""
    return stalls.has_ended(view)


def _why_not(view: RunView) -> str:
    if view.is_held:
        return "held by a person"
    return "[policy] act = false" if not view.settings.act else "a rank has come to its end, so the run is near its own"


def evidence_of(
    view: RunView, found: Finding, by_rank: Mapping[int, Judgement], looks: list[RankLook], lasted: float
) -> dict[str, Any]:
    """What was measured, as incident.json shows it. Needs no suspicion: an answer on demand has the same evidence."""
    evidence: dict[str, Any] = {
        "silent_s": round(lasted, 1),
        "suspected_after_s": round(view.gaps.suspicious_after_s(view.settings.floor_s), 1),
        "waiting": found.waiting,
        "ranks": of_judged(attempt_of(view), by_rank, found.culprits),
        "stack": stack_of(looks, found.culprits or found.waiting),
    }
    evidence |= of_collectives(match(looks), looks)
    if wrong := wrong_with(view, found.culprits):
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


def _tell_stack_trouble(memory: HangMemory, looks: list[RankLook]) -> Sequence[Verdict]:
    """Once a run: that the stacks are not as good as they could be is worth a person's hand."""
    troubles = _stack_troubles(looks)
    if not troubles or memory.has_told_trouble:
        return ()
    memory.has_told_trouble = True
    return [Remark(text="; ".join(troubles[:3]), level="warn")]
