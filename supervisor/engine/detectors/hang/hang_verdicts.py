"""It is a hang: what is told of it, and what is done."""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.detectors.hang.memory import HangMemory
from guardrun.supervisor.engine.incidents.evidence import of_hang
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, is_near_end
from guardrun.supervisor.engine.model.verdicts import Changed, Detected, Remark, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.hang_finding import Finding, JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import RankActivity

WATCHED_LOOK_S = 60.0
"""Between looks at a hang that is only watched."""


def verdict(
    memory: HangMemory, view: RunView, found: Finding, seen: JudgedSnapshot, *, lasted_s: float, now_s: float
) -> Sequence[Verdict]:
    """Its incident, or more of the one that there is, and the attempt's end where guardrun may act.

    lasted_s: for all that is known (`patience.told_s`).
    """
    attempt, suspicion = attempt_of(view), memory.suspicion
    assert suspicion is not None
    may_act = suspicion.is_forced or (view.may_act and not is_near_end(view))
    known = suspicion.key
    if not known and found.doing is RankActivity.COLLECTING:
        known = next(filter(None, (view.detectors.gc_pause.key(attempt.number, rank) for rank in found.culprits)), "")
    if known and not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        return ()
    summary = hang_sentence(attempt, found, seen.by_rank, lasted_s)
    evidence = of_hang(view, found, seen, lasted_s)
    if loops := {r: suspicion.loops[r].spots for r in found.culprits if r in suspicion.loops}:
        evidence["seen_at"] = {str(rank): spots for rank, spots in loops.items()}
    stall = suspicion.stall
    onset_s = max(now_s - lasted_s, 0.0)
    # A script that has come to its end is not started anew because its process lingers.
    action = "restart" if may_act and found.doing is not RankActivity.LEAVING else "none"
    if may_act and not (found.is_proof or found.is_certain) and (place := seen.place_of(found)):
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
        verdicts += [detected, *_tell_stack_trouble(memory, evidence.get("stack_troubles", []))]
        verdicts += tell_blind(memory, seen.event.ranks)
    if not may_act:
        suspicion.next_look_s = now_s + WATCHED_LOOK_S
        verdicts.append(Remark(text=f"nothing is changed: {_why_not(view)}"))
    return verdicts


def _why_not(view: RunView) -> str:
    if view.is_held:
        return "held by a person"
    return "[policy] act = false" if not view.settings.act else "a rank has come to its end, so the run is near its own"


def tell_blind(memory: HangMemory, looks: Sequence[RankLook]) -> Sequence[Verdict]:
    """Once a run: what nobody can read of devices, so that torch's own timeouts stand."""
    unread = [look for look in looks if look.is_unread]
    if not unread or memory.has_told_blind:
        return ()
    memory.has_told_blind = True
    ranks = rank_list(sorted(look.global_rank for look in unread))
    why = next((look.groups_trouble for look in unread if look.groups_trouble), "no flight recorder of them answers")
    text = f"blind: what the devices of rank {ranks} do can't be read ({why}); torch's own timeouts stand"
    return [Remark(text=text, level="warn")]


def _tell_stack_trouble(memory: HangMemory, troubles: Sequence[str]) -> Sequence[Verdict]:
    """Once a run: that the stacks are not as good as they could be is worth a person's hand."""
    if not troubles or memory.has_told_trouble:
        return ()
    memory.has_told_trouble = True
    return [Remark(text="; ".join(troubles[:3]), level="warn")]
