"""Garbage collections that hold one rank up while others wait: told, and mostly over before anything need be done."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import Action, Say
from guardrun.supervisor.core.evidence import of_judged
from guardrun.supervisor.core.finding import Finding
from guardrun.supervisor.core.frames import rank_list
from guardrun.supervisor.core.incidents import change, open_incident, write
from guardrun.supervisor.core.judge import Doing, Judgement
from guardrun.supervisor.core.looks import RankLook
from guardrun.supervisor.core.sentences import hang_sentence, who
from guardrun.supervisor.core.state import Attempt, HeldStep, RankState, State, attempt_of

GC_LOOK_S = 5.0
"""One that ends tells of itself, from a second on (the contract's `gc_pause`), and knows better what it cost."""
MIN_SHARE = 0.1
"""Of the gap in which its rank advanced no further, once that has ended: a second of collections, here and there in a
long piece of work, held nobody up."""
_KEPT = 50
SHARE = 0.75
"""Of the collection that the gap of one that waited covers at least: its last advance may lie within the pause."""


def due_s(attempt: Attempt, silence_began_s: float, never_s: float) -> float:
    """When a collection deserves a look: it has gone on for a second, and nobody has advanced meanwhile."""
    if not attempt.collecting or attempt.alive < 2 or not attempt.has_progress:
        return never_s
    since_s = min((s for n, s in attempt.collecting.items() if n not in attempt.gc_incidents), default=None)
    return never_s if since_s is None else max(since_s, silence_began_s) + GC_LOOK_S


def on_gc_held(state: State, event: ev.GcHeld, now_s: float) -> list[Action]:
    """Told afterwards by the rank itself: an incident only if others waited for it meanwhile."""
    attempt = attempt_of(state)
    if event.attempt != attempt.number or event.global_rank not in attempt.ranks:
        return []
    if event.global_rank in attempt.gc_incidents:
        return _note(state, event)
    resumed_step = attempt.resumed_from.step if attempt.resumed_from else 0
    began_s = now_s - event.duration_s
    collected = {*attempt.collecting, *(number for number, at_s in attempt.collected_s.items() if at_s > began_s)}
    if event.step <= resumed_step or collected - {event.global_rank}:
        # Imports collect a lot, and before the first step nobody waits; those that collect too do not wait either.
        return []
    others = [r for n, r in attempt.ranks.items() if n != event.global_rank and r.exitcode is None]
    # In step with it, and not past the step in which it collected (the edge samples before it tells this event).
    waited = [r.rank.global_rank for r in others if r.progress and _has_waited(r, event)]
    if not waited:
        return []
    rank = attempt.ranks[event.global_rank]
    held = HeldStep(event=event, waited=waited, began_s=max(began_s, 0.0), progress=rank.progress)
    if rank.step > event.step:
        return _tell(state, held, rank.gap_s, now_s)
    attempt.gc_held[event.global_rank] = held
    return []


def on_progress(state: State, now_s: float) -> list[Action]:
    """Tell of those collections whose step is over now, if they were a good part of it."""
    attempt = attempt_of(state)
    actions: list[Action] = []
    for number, held in list(attempt.gc_held.items()):
        rank = attempt.ranks[number]
        if rank.progress > held.progress:
            del attempt.gc_held[number]
            is_known = number in attempt.gc_incidents
            actions += _note(state, held.event) if is_known else _tell(state, held, rank.gap_s, now_s)
    return actions


def on_good_end(state: State, now_s: float) -> list[Action]:
    """Nothing comes any more that would show training to be past a collection that was told when it was over."""
    attempt = attempt_of(state)
    actions: list[Action] = []
    for incident_id in attempt.gc_incidents.values():
        if incident_id in state.open_incidents and attempt.step > (state.incidents[incident_id].step or 0):
            state.open_incidents.remove(incident_id)
            actions.append(change(state, incident_id, recovered_s=now_s))
    return actions


def _note(state: State, event: ev.GcHeld) -> list[Action]:
    """One more of a rank of which one has been told."""
    known = attempt_of(state).gc_incidents[event.global_rank]
    evidence = state.incidents[known].evidence
    pauses = [*evidence.get("pauses", []), _pause(event)][-_KEPT:]
    return [change(state, known, evidence={**evidence, "pauses": pauses})]


def _tell(state: State, held: HeldStep, gap_s: float, now_s: float) -> list[Action]:
    event, waited = held.event, held.waited
    if event.duration_s < MIN_SHARE * gap_s:
        return []
    summary = (
        f"{who(attempt_of(state), [event.global_rank])} held the others up for {event.duration_s:.1f} s in a garbage "
        f"collection (generation {event.generation}{_objects(event)}) at step {event.step}; "
        f"{'rank' if len(waited) == 1 else 'ranks'} {rank_list(waited)} waited."
    )
    evidence = {"pauses": [_pause(event)], "waiting": waited}
    said, _ = _open(state, event.global_rank, summary, onset_s=held.began_s, now_s=now_s, evidence=evidence)
    known = attempt_of(state).gc_incidents[event.global_rank]
    change(state, known, step=event.step)  # by now the ranks may be some steps further
    return [said, write(state, known, is_new=True)]


def _has_waited(rank: RankState, event: ev.GcHeld) -> bool:
    """Whether a rank shows that it could not get past the step of the collection.

    Those that waited go on at once: by now it may have done that step, after a gap as long as the collection.
    """
    return rank.step <= event.step or (rank.step == event.step + 1 and rank.gap_s >= SHARE * event.duration_s)


def _objects(event: ev.GcHeld) -> str:
    """How many objects it looked at, and gave back, in words."""
    if event.tracked < 0:
        return f", {event.collected:,} objects collected" if event.collected else ""
    return f", {event.tracked + event.collected:,} objects, {event.collected:,} of them collected"


def _pause(event: ev.GcHeld) -> dict[str, Any]:
    return {
        "step": event.step,
        "duration_s": round(event.duration_s, 3),
        "generation": event.generation,
        "collected": event.collected,
        "tracked": event.tracked,
    }


def on_look(state: State, by_rank: dict[int, Judgement], looks: list[RankLook], now_s: float) -> list[Action]:
    """A collection that is seen to hold one rank while others wait is told at once."""
    attempt = attempt_of(state)
    waiting = [j.global_rank for j in by_rank.values() if j.doing is Doing.WAITING]
    actions: list[Action] = []
    for look in looks:
        rank = look.global_rank
        is_long = look.gc_since_s and now_s - look.gc_since_s >= GC_LOOK_S
        if not is_long or not waiting or rank in attempt.gc_incidents or by_rank[rank].doing is not Doing.COLLECTING:
            continue
        if by_rank[rank].is_starved:
            continue  # what it waits for is a core, as everything on this node may
        found = Finding(
            cause="gc_pause", culprits=[rank], waiting=waiting, confidence=0.95, patience_s=0, doing=Doing.COLLECTING
        )
        summary = hang_sentence(attempt, found, by_rank, now_s - look.gc_since_s)
        evidence: dict[str, Any] = {"waiting": waiting, "ranks": of_judged(attempt, by_rank, [rank])}
        actions += _open(state, rank, summary, onset_s=look.gc_since_s, now_s=now_s, evidence=evidence)
    return actions


def _open(
    state: State, rank: int, summary: str, *, onset_s: float, now_s: float, evidence: dict[str, Any]
) -> list[Action]:
    """Open the incident of a collection that held a rank; nothing is done about it."""
    incident = open_incident(
        state,
        kind="hang",
        cause="gc_pause",
        confidence=0.95,
        summary=summary,
        culprits=[rank],
        onset_s=onset_s,
        now_s=now_s,
        evidence=evidence,
        looks=list(state.suspicion.looks[-2:]) if state.suspicion else [],
        action="none",
    )
    attempt_of(state).gc_incidents[rank] = incident.id
    say = Say(text=f"incident {incident.id}: {incident.summary}", level="warn")
    return [say, write(state, incident.id, is_new=True)]
