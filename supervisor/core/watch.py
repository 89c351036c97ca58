"""The watch over a running attempt: reports in, suspicion, looks, verdicts of kind `hang`.

Suspicion costs a look and nothing else. A job is suspected when no rank of it has advanced for longer than this run's
own gaps explain (`Gaps`), or when there is proof (a stopped process). It is looked at again and again, two looks
are judged against each other (`judge`), what they say is put together (`find`), and only when that has been true for as
long as its kind of doubt deserves does it become a verdict.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import Action, Say, TakeLook
from guardrun.supervisor.core.frames import base_name, is_users, rank_list
from guardrun.supervisor.core.hang import Finding, find
from guardrun.supervisor.core.incidents import change, close_recovered, open_incident, write
from guardrun.supervisor.core.judge import Doing, Judgement, judge
from guardrun.supervisor.core.ledger import REDOING, TRAINING
from guardrun.supervisor.core.looks import Frame, RankLook
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.sentences import hang_sentence, who
from guardrun.supervisor.core.state import Attempt, RankState, State, Suspicion
from guardrun.supervisor.core.stops import stop_for

LOOK_TIMEOUT_S = 45.0
"""A look that has not come back by then is asked for again: its collectors have limits of their own, well below."""
GC_LOOK_S = 1.0
QUICK_LOOK_S = 0.5
"""Between the looks at a proof: what a process state or the board says needs no two stacks far apart."""
BUSY_LOOK_MAX_S = 60.0
STALL_MARGIN = 2.0
"""A stall that once ended by itself after d seconds is given twice that the next time, at the same place."""


def attempt_of(state: State) -> Attempt:
    assert state.attempt is not None
    return state.attempt


def on_node_report(state: State, event: ev.NodeReport, now_s: float) -> list[Action]:
    attempt = attempt_of(state)
    if event.attempt != attempt.number:
        return []
    advanced_s = 0.0
    for report in event.ranks:
        rank = attempt.ranks.get(report.global_rank)
        if rank is not None:
            advanced_s = max(advanced_s, _take_report(attempt, rank, report, now_s))
    actions: list[Action] = []
    if advanced_s:
        actions += _advanced(state, advanced_s, now_s)
    return actions


def _take_report(attempt: Attempt, rank: RankState, report: ev.RankReport, now_s: float) -> float:
    """Note what changed. Returns when it advanced, 0.0 where it did not."""
    is_stopped = report.state in "Tt"
    if not is_stopped or rank.exitcode is not None:
        rank.stopped_since_s = 0.0
    elif not rank.stopped_since_s:
        rank.stopped_since_s = now_s
    rank.state = report.state
    rank.gc_since_s = report.gc_since_s
    rank.milestones = report.milestones
    rank.phase = report.phase
    rank.step = max(rank.step, report.step)
    attempt.step = max(attempt.step, rank.step)
    if attempt.first_step is None and report.step:
        attempt.first_step = report.step
    if report.progress <= rank.progress:
        return 0.0
    rank.progress = report.progress
    rank.progress_s = min(max(report.progress_s, rank.progress_s), now_s)
    return rank.progress_s


def _advanced(state: State, at_s: float, now_s: float) -> list[Action]:
    """The job has got somewhere: learn the gap, end a suspicion, book the time."""
    attempt = attempt_of(state)
    if attempt.has_progress and not _is_proven(attempt):
        state.gaps.add(at_s - attempt.progress_s)
    attempt.has_progress = True
    attempt.progress_s = max(attempt.progress_s, at_s)
    if state.suspicion and not _is_proven(attempt):
        _end_suspicion(state, at_s)
    if state.phase is Phase.RUNNING:
        use = TRAINING if attempt.step > state.best_step or not state.best_step else REDOING
        if use != state.ledger.use:
            state.ledger.switch(use, now_s)
    return close_recovered(state, now_s)


def _end_suspicion(state: State, at_s: float) -> None:
    """It ended by itself: remember where, so that the same stall gets more patience next time."""
    suspicion = state.suspicion
    assert suspicion is not None
    lasted_s = at_s - suspicion.began_s + state.gaps.suspicious_after_s(state.settings.floor_s)
    for place in suspicion.places.values():
        state.remembered[place] = max(lasted_s, state.remembered.get(place, 0.0))
    state.suspicion = None


def _is_proven(attempt: Attempt) -> bool:
    return any(rank.stopped_since_s for rank in attempt.ranks.values())


def silence_began_s(attempt: Attempt) -> float:
    """When the job last advanced; the attempt's start before it ever did."""
    return max(attempt.progress_s, attempt.started_s)


def deadline_s(state: State) -> float | None:
    """When the watch next has something to do."""
    attempt = attempt_of(state)
    if not attempt.alive or state.crash or state.verdict_incident:
        return None
    if state.look_since_s is not None:
        return state.look_since_s + LOOK_TIMEOUT_S
    if state.suspicion:
        return state.suspicion.next_look_s
    threshold_s = state.gaps.suspicious_after_s(state.settings.floor_s)
    times = [silence_began_s(attempt) + threshold_s]
    times += [since + QUICK_LOOK_S for since in _stops(attempt)]
    times += [since + GC_LOOK_S for since in _collections(state)]
    return min(times)


def _stops(attempt: Attempt) -> list[float]:
    return [r.stopped_since_s for r in attempt.ranks.values() if r.stopped_since_s]


def _collections(state: State) -> list[float]:
    attempt = attempt_of(state)
    if attempt.alive < 2:
        return []
    return [
        r.gc_since_s
        for r in attempt.ranks.values()
        if r.gc_since_s and r.exitcode is None and r.rank.global_rank not in attempt.gc_incidents
    ]


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when deadline_s has come."""
    attempt = attempt_of(state)
    if state.look_since_s is None and state.suspicion is None:
        state.suspicion = Suspicion(began_s=now_s, reason=_reason(state, now_s), next_look_s=now_s)
    state.look += 1
    state.look_since_s = now_s
    reason = state.suspicion.reason if state.suspicion else ""
    return [TakeLook(look=state.look, attempt=attempt.number, reason=reason)]


def _reason(state: State, now_s: float) -> str:
    attempt = attempt_of(state)
    if _stops(attempt):
        return "a rank is stopped"
    if any(since + GC_LOOK_S <= now_s for since in _collections(state)):
        return "a collection takes long"
    return f"no progress for {now_s - silence_began_s(attempt):.0f} s"


def on_look_taken(state: State, event: ev.LookTaken, now_s: float) -> list[Action]:
    attempt = attempt_of(state)
    if event.look != state.look or event.attempt != attempt.number:
        return []
    state.look_since_s = None
    suspicion = state.suspicion
    if suspicion is None:
        return []
    if event.folder:
        suspicion.looks.append(event.folder)
    if not event.ranks:
        suspicion.next_look_s = now_s + state.settings.look_gap_s
        return []
    judged = _judge_all(suspicion, event.ranks)
    if not judged:
        is_quick = _is_proven(attempt) or any(look.gc_since_s for look in event.ranks)
        suspicion.next_look_s = now_s + (QUICK_LOOK_S if is_quick else state.settings.look_gap_s)
        return []
    suspicion.judged = [_as_evidence(attempt, j) for j in judged]
    ended = [r.rank.global_rank for r in attempt.ranks.values() if r.exitcode == 0]
    found = find(judged, ended, state.settings)
    by_rank = {j.global_rank: j for j in judged}
    actions = _gc_actions(state, by_rank, event.ranks, now_s)
    if found is None or _is_over(state, found):
        return actions + _not_yet(state, by_rank, found, now_s)
    silent_s = _silent_s(state, found, event.ranks, now_s)
    patience_s = _patience_s(state, found, by_rank)
    if silent_s + 0.05 < patience_s:
        suspicion.busy_looks = 0
        _remember_places(suspicion, by_rank)
        _plan_next(state, now_s, patience_s - silent_s)
        return actions
    return actions + _verdict(state, found, by_rank, event.ranks, now_s)


def _judge_all(suspicion: Suspicion, looks: list[RankLook]) -> list[Judgement]:
    """Judge every rank against the earliest look that still shows it as it is now."""
    judged = []
    for look in looks:
        old = suspicion.first.get(look.global_rank)
        if old is None or old.process.pid != look.process.pid:
            suspicion.first[look.global_rank] = look
            suspicion.unmoved_since_s.pop(look.global_rank, None)
            continue
        if look.at_s <= old.at_s:
            continue
        judgement = judge(old, look)
        judged.append(judgement)
        if judgement.doing in (Doing.BUSY, Doing.CHURNING):
            # What moved is compared with from here on.
            suspicion.first[look.global_rank] = look
            if judgement.doing is Doing.BUSY:
                suspicion.unmoved_since_s[look.global_rank] = look.at_s
    return judged if len(judged) == len(looks) else []


def _is_over(state: State, found: Finding) -> bool:
    """A stopped process that goes on again needs no verdict."""
    return found.is_proof and not _is_proven(attempt_of(state))


def _not_yet(state: State, by_rank: dict[int, Judgement], found: Finding | None, now_s: float) -> list[Action]:
    """Somebody gets somewhere: look again later, with growing patience."""
    suspicion = state.suspicion
    assert suspicion is not None
    suspicion.busy_looks += 1
    _remember_places(suspicion, by_rank)
    attempt = attempt_of(state)
    silent_s = now_s - silence_began_s(attempt)
    if found is not None or silent_s < state.settings.floor_s:
        # It was proof, or a collection, and is over: the ordinary watch goes on.
        state.suspicion = None
        return []
    wait_s = min(state.settings.look_every_s * 1.3**suspicion.busy_looks, BUSY_LOOK_MAX_S)
    suspicion.next_look_s = now_s + wait_s
    return []


def on_gc_held(state: State, event: ev.GcHeld, now_s: float) -> list[Action]:
    """Told afterwards by the rank itself: an incident only if others waited for it meanwhile."""
    attempt = attempt_of(state)
    if event.attempt != attempt.number or event.global_rank not in attempt.ranks:
        return []
    known = attempt.gc_incidents.get(event.global_rank)
    if known:
        evidence = state.incidents[known].evidence
        pauses = [*evidence.get("pauses", []), _pause(event)][-50:]
        return [change(state, known, evidence={**evidence, "pauses": pauses})]
    others = [r for n, r in attempt.ranks.items() if n != event.global_rank and r.exitcode is None]
    onset_s = max(now_s - event.duration_s, 0.0)
    resumed_step = attempt.resumed_from.step if attempt.resumed_from else 0
    if event.step <= resumed_step or any(r.gc_since_s for r in others):
        # Imports collect a lot, and before the first step nobody waits; those that collect too do not wait either.
        return []
    # In step with it, and not past the step in which it collected (the edge samples before it tells this event).
    waited = [r.rank.global_rank for r in others if r.progress and r.step <= event.step]
    if not waited:
        return []
    summary = (
        f"{who(attempt, [event.global_rank])} held the others up for {event.duration_s:.1f} s in a garbage collection "
        f"(generation {event.generation}) at step {event.step}; "
        f"{'rank' if len(waited) == 1 else 'ranks'} {rank_list(waited)} waited."
    )
    evidence = {"pauses": [_pause(event)], "waiting": waited}
    return open_gc_incident(state, event.global_rank, summary, onset_s=onset_s, now_s=now_s, evidence=evidence)


def _pause(event: ev.GcHeld) -> dict[str, Any]:
    return {
        "step": event.step,
        "duration_s": round(event.duration_s, 3),
        "generation": event.generation,
        "collected": event.collected,
    }


def _remember_places(suspicion: Suspicion, by_rank: dict[int, Judgement]) -> None:
    suspicion.places = {r: j.place for r, j in by_rank.items() if j.place and j.doing is not Doing.WAITING}


def _silent_s(state: State, found: Finding, looks: list[RankLook], now_s: float) -> float:
    """How long it has been as it is: since the last progress, or since anything of the culprits moved."""
    attempt = attempt_of(state)
    suspicion = state.suspicion
    assert suspicion is not None
    if found.is_proof:
        return now_s - min(attempt.ranks[r].stopped_since_s or now_s for r in found.culprits)
    if found.doing is Doing.COLLECTING:
        return now_s - min((k.gc_since_s for k in looks if k.gc_since_s), default=now_s)
    began_s = silence_began_s(attempt)
    for rank in found.culprits or found.waiting:
        began_s = max(began_s, suspicion.unmoved_since_s.get(rank, 0.0))
    return now_s - began_s


def _patience_s(state: State, found: Finding, by_rank: dict[int, Judgement]) -> float:
    patience_s = found.patience_s
    if found.is_proof:
        return patience_s
    for rank in found.culprits:
        judgement = by_rank.get(rank)
        if judgement:
            patience_s = max(patience_s, STALL_MARGIN * state.remembered.get(judgement.place, 0.0))
    patience_s = max(patience_s, state.gaps.suspicious_after_s(state.settings.floor_s))
    if state.settings.hard_timeout_s:
        patience_s = min(patience_s, state.settings.hard_timeout_s)
    return patience_s


def _plan_next(state: State, now_s: float, left_s: float) -> None:
    """The next look: soon enough to decide in time, seldom enough to cost nothing."""
    assert state.suspicion is not None
    state.suspicion.next_look_s = now_s + max(QUICK_LOOK_S, min(left_s, state.settings.look_every_s))


def _gc_actions(state: State, by_rank: dict[int, Judgement], looks: list[RankLook], now_s: float) -> list[Action]:
    """A collection that holds one rank while others wait is told at once; it mostly ends by itself."""
    attempt = attempt_of(state)
    actions: list[Action] = []
    waiting = [j.global_rank for j in by_rank.values() if j.doing is Doing.WAITING]
    for look in looks:
        rank = look.global_rank
        is_long = look.gc_since_s and now_s - look.gc_since_s >= GC_LOOK_S
        if not is_long or not waiting or rank in attempt.gc_incidents or by_rank[rank].doing is not Doing.COLLECTING:
            continue
        found = Finding(
            cause="gc_pause", culprits=[rank], waiting=waiting, confidence=0.95, patience_s=0, doing=Doing.COLLECTING
        )
        summary = hang_sentence(attempt, found, by_rank, now_s - look.gc_since_s)
        evidence: dict[str, Any] = {"ranks": [_as_evidence(attempt, j) for j in by_rank.values()]}
        actions += open_gc_incident(state, rank, summary, onset_s=look.gc_since_s, now_s=now_s, evidence=evidence)
    return actions


def open_gc_incident(
    state: State, rank: int, summary: str, *, onset_s: float, now_s: float, evidence: dict[str, Any]
) -> list[Action]:
    """Open the incident of a collection that held a rank; nothing is done about it."""
    attempt = attempt_of(state)
    looks = list(state.suspicion.looks[-2:]) if state.suspicion else []
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
        looks=looks,
        action="none",
    )
    attempt.gc_incidents[rank] = incident.id
    return [Say(text=f"incident {incident.id}: {summary}", level="warn"), write(state, incident.id, is_new=True)]


def _verdict(
    state: State, found: Finding, by_rank: dict[int, Judgement], looks: list[RankLook], now_s: float
) -> list[Action]:
    """It is a hang. Open (or take up again) its incident, and act where guardrun may."""
    attempt = attempt_of(state)
    suspicion = state.suspicion
    assert suspicion is not None
    silent_s = _silent_s(state, found, looks, now_s)
    onset_s = max(now_s - silent_s, 0.0)
    summary = hang_sentence(attempt, found, by_rank, silent_s)
    evidence: dict[str, Any] = {
        "silent_s": round(silent_s, 1),
        "suspected_after_s": round(state.gaps.suspicious_after_s(state.settings.floor_s), 1),
        "waiting": found.waiting,
        "ranks": suspicion.judged,
        "stack": _stack_of(looks, found.culprits or found.waiting),
    }
    if found.why_nobody:
        evidence["why_no_culprit"] = found.why_nobody
    may_act = state.settings.act and not state.is_held
    known = suspicion.incident_id
    if not known and found.doing is Doing.COLLECTING:
        known = next((attempt.gc_incidents[r] for r in found.culprits if r in attempt.gc_incidents), "")
    if known and not may_act:
        suspicion.next_look_s = now_s + BUSY_LOOK_MAX_S
        return []
    actions: list[Action] = []
    if known:
        actions.append(change(state, known, evidence=evidence, summary=summary))
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
            action="restart" if may_act else "none",
        ).id
        actions += [Say(text=f"incident {known}: {summary}", level="bad"), write(state, known, is_new=True)]
    if may_act:
        return actions + stop_for(state, known, onset_s=onset_s, now_s=now_s)
    suspicion.incident_id = known
    suspicion.next_look_s = now_s + BUSY_LOOK_MAX_S
    why = "held by a person" if state.is_held else "[policy] act = false"
    return [*actions, Say(text=f"nothing is changed: {why}", level="info")]


def _stack_of(looks: list[RankLook], ranks: list[int]) -> list[str]:
    """The first culprit's stack, innermost first, for incident.json."""
    for look in looks:
        if look.global_rank in ranks and look.process.threads:
            return [_frame_text(frame) for frame in look.process.threads[0].frames[:24]]
    return []


def _frame_text(frame: Frame) -> str:
    mark = "" if is_users(frame) else "  "
    return f"{mark}{frame.function} ({base_name(frame.file)}:{frame.line})"


def _as_evidence(attempt: Attempt, judgement: Judgement) -> dict[str, Any]:
    rank = attempt.ranks[judgement.global_rank]
    return {
        "rank": judgement.global_rank,
        "pid": rank.rank.pid,
        "state": rank.state,
        "judgement": judgement.doing.value,
        "reason": judgement.reason,
        "at": judgement.spot,
        "waits_in": judgement.waits_in,
        "step": rank.step,
        "collectives": judgement.order,
        "phase": rank.phase,
    }
