"""The watch over a running attempt: reports in, suspicion, looks.

Suspicion costs a look and nothing else. A job is suspected when no rank of it has advanced for longer than this run's
own gaps explain (`Gaps`), or when there is proof (a stopped process). It is looked at again and again, two looks
in a row are judged against each other (`judge`), what they say is put together (`find`), and only when that has been
true for as long as its kind of doubt deserves does it become a verdict (`verdicts`).

What is done with every report must not grow with the number of ranks.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.detectors.detector import LookJudged
from guardrun.supervisor.engine.detectors.failure import node_health
from guardrun.supervisor.engine.detectors.hang import hang_verdicts, stalls
from guardrun.supervisor.engine.detectors.hang.hang import DOUBTFUL, find
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, TakeLook
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.lost_time import REDOING, TRAINING
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.collective_waits import match, waits_on_device
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.judged_snapshot import JudgedSnapshot
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity, judge, unlooked
from guardrun.supervisor.engine.observation.repeated_frames import may_loop, over_looks
from guardrun.supervisor.engine.recovery import operator_restart, resumption
from guardrun.supervisor.engine.recovery.decide import observe
from guardrun.supervisor.engine.state.incidents import close_recovered
from guardrun.supervisor.engine.state.progress_gaps import FACTOR
from guardrun.supervisor.engine.state.state import (
    Attempt,
    RankState,
    State,
    Suspicion,
    attempt_of,
    silence_began_s,
)

LOOK_TIMEOUT_S = 45.0
"""A look that has not come back by then is asked for again: its collectors have limits of their own, well below."""
QUICK_LOOK_S = 0.5
"""Between the looks at a proof: what a process state or the board says needs no two stacks far apart."""
BUSY_LOOK_MAX_S = 60.0
WAIT_PAUSE_MAX_S = 60.0
WAIT_LOOK_S = 3.0
"""Of silence, with a rank in a collective (or without a batch) all the while: a look may show calls that never meet."""

_STOPPED = ("T", "t")
_ON_DEVICE = frozenset({RankActivity.CHURNING, RankActivity.IDLE, RankActivity.SPINNING, RankActivity.UNSEEN})
"""How a rank looks that waits for its device, which waits in a collective: in any call, with or without CPU."""


# Reports -----------------------------------------------------------------------------------------------


def on_node_report(state: State, event: ev.NodeReport, now_s: float) -> list[Action]:
    """Book the progress of one node's ranks; detectors of slowdowns, GC and node trouble see the report, too."""
    attempt = attempt_of(state)
    if event.attempt != attempt.number:
        return []
    advanced_s = 0.0
    for report in event.ranks:
        rank = attempt.ranks.get(report.global_rank)
        if rank is not None:
            advanced_s = max(advanced_s, _take_report(attempt, rank, report, now_s))
    actions: list[Action] = []
    attempt.steprate.add(now_s, attempt.step)
    if state.nodes.findings and now_s >= state.nodes.next_s:
        actions += node_health.on_report(state, now_s)
    if state.phase is Phase.RUNNING:
        actions += resumption.on_report(state, now_s)
    return actions + _advanced(state, advanced_s, now_s) if advanced_s else actions


def _take_report(attempt: Attempt, rank: RankState, report: ev.RankReport, now_s: float) -> float:
    """Note what changed. Returns when it advanced, 0.0 where it did not."""
    number = report.global_rank
    if rank.exitcode is None:
        rank.state = report.state
        _note_stop(attempt, number, report.state, now_s)
        if report.gc_since_s:
            attempt.collecting[number] = report.gc_since_s
        elif attempt.collecting.pop(number, None):
            attempt.collected_s[number] = now_s
        if report.waits_since_s:
            attempt.waiting[number] = report.waits_since_s
        else:
            attempt.waiting.pop(number, None)
    if report.joint:
        attempt.tied.add(rank.rank.node)
    rank.milestones, rank.is_save_held = report.milestones, report.is_save_held
    rank.phase = report.phase
    rank.step = max(rank.step, report.step)
    attempt.step = max(attempt.step, rank.step)
    if attempt.first_step is None and report.step:
        attempt.first_step = report.step
    if report.progress <= rank.progress:
        return 0.0
    rank.progress = report.progress
    before_s, rank.progress_s = rank.progress_s, min(max(report.progress_s, rank.progress_s), now_s)
    rank.gap_s = rank.progress_s - before_s
    if number in attempt.stopped:
        # It has been let run in between, as programs that limit the CPU do: count from now.
        attempt.stopped[number] = now_s
    return rank.progress_s


def _note_stop(attempt: Attempt, number: int, process_state: str, at_s: float) -> None:
    """Keep `attempt.stopped`; what is told late says nothing about later."""
    if process_state in _STOPPED:
        attempt.stopped.setdefault(number, at_s)
    elif attempt.stopped.get(number, at_s) < at_s:
        del attempt.stopped[number]


def _advanced(state: State, at_s: float, now_s: float) -> list[Action]:
    """The job has got somewhere: learn the gap, end a suspicion, book the time."""
    attempt = attempt_of(state)
    if state.phase is not Phase.RUNNING:
        return []  # what ranks still do while they are being stopped
    gap_s = at_s - silence_began_s(attempt)
    if attempt.has_progress and not attempt.stopped:
        state.gaps.add(gap_s, at_s)
    attempt.has_progress = True
    attempt.progress_s = max(attempt.progress_s, at_s)
    actions: list[Action] = []
    if state.suspicion and not attempt.stopped:
        actions = _over(state, state.suspicion, gap_s, now_s)
    use = TRAINING if attempt.step > state.best_step or not state.best_step else REDOING
    if use != state.ledger.use:
        state.ledger.switch(use, now_s)
    return actions + close_recovered(state, now_s) if state.open_incidents else actions


def _over(state: State, suspicion: Suspicion, lasted_s: float, now_s: float) -> list[Action]:
    """It ended by itself: the same stall gets more patience next time."""
    for place in suspicion.places.values():
        state.remembered[place] = max(lasted_s, state.remembered.get(place, 0.0))
    is_forced = suspicion.is_forced
    actions = stalls.withdraw(state, suspicion, now_s)
    _end_suspicion(state, now_s)
    return actions + operator_restart.stop(state, now_s) if is_forced else actions


def _end_suspicion(state: State, now_s: float) -> None:
    state.suspicion, state.look_since_s = None, None
    # A process that is stopped and let run in turns must not be looked at all the time.
    attempt_of(state).next_quick_s = now_s + state.settings.look_every_s


def _no_proof(state: State, now_s: float) -> None:
    """Looked at before the floor, for nothing: the ordinary watch goes on, and such looks come ever more seldom."""
    _end_suspicion(state, now_s)
    attempt = attempt_of(state)
    attempt.wait_pause_s = min(max(2 * attempt.wait_pause_s, state.settings.look_every_s), WAIT_PAUSE_MAX_S)
    attempt.next_wait_s = now_s + attempt.wait_pause_s


# Deadlines ---------------------------------------------------------------------------------------------


def deadline_s(state: State) -> float | None:
    """When the watch next has something to do."""
    attempt = attempt_of(state)
    if not attempt.alive or state.crash or state.verdict_incident:
        return None
    if state.fleet is not None and state.fleet.silent:
        # engine/membership/node_silence.py decides: what would be seen of its ranks is that they were not seen.
        return None
    if state.look_since_s is not None:
        return state.look_since_s + LOOK_TIMEOUT_S
    if state.suspicion:
        return state.suspicion.next_look_s
    due_s = silence_began_s(attempt) + state.gaps.suspicious_after_s(state.settings.floor_s)
    if attempt.stopped or attempt.collecting or attempt.waiting:
        quick_s = min(
            min(attempt.stopped.values(), default=due_s) + QUICK_LOOK_S,
            state.detectors.gc_pause.look_due_s(attempt, silence_began_s(attempt), never_s=due_s),
        )
        wait_s = _wait_due_s(state, attempt, never_s=due_s)
        due_s = min(due_s, max(quick_s, attempt.next_quick_s), max(wait_s, attempt.next_wait_s))
    return due_s


def _wait_due_s(state: State, attempt: Attempt, never_s: float) -> float:
    """When a rank that waits deserves a look, floor or not: what it waits in may be proof.

    The longer of a run's gaps do not count: they are learned in the start's rush, in evaluations, or on a busy node.
    Looks that find no proof come ever more seldom.
    """
    if not attempt.waiting or attempt.alive < 2:
        return never_s
    return silence_began_s(attempt) + min(max(WAIT_LOOK_S, FACTOR * state.gaps.median_s), state.settings.floor_s)


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when deadline_s has come."""
    attempt = attempt_of(state)
    if state.suspicion is None:
        state.suspicion = Suspicion(began_s=now_s, reason=_reason(state, now_s), next_look_s=now_s)
    if state.look_since_s is None:
        state.look += 1  # else it is asked for again, under the same number: whichever answer comes first counts
    state.look_since_s = now_s
    return [TakeLook(look=state.look, attempt=attempt.number, reason=state.suspicion.reason)]


def _reason(state: State, now_s: float) -> str:
    attempt = attempt_of(state)
    if attempt.stopped:
        return "a rank is stopped"
    if state.detectors.gc_pause.look_due_s(attempt, silence_began_s(attempt), never_s=now_s + 1) <= now_s:
        return "a collection takes long"
    if attempt.waiting and now_s - silence_began_s(attempt) < state.settings.floor_s:
        return "a rank waits"
    return f"no progress for {now_s - silence_began_s(attempt):.0f} s"


# Looks -------------------------------------------------------------------------------------------------


def on_look_taken(state: State, event: ev.LookTaken, now_s: float) -> list[Action]:
    """Judge the look against the one before; a hang is acted on once it has lasted as long as its kind deserves."""
    attempt, suspicion = attempt_of(state), state.suspicion
    if suspicion is None or state.look_since_s is None:
        return []
    if event.look != state.look or event.attempt != attempt.number:
        return []
    state.look_since_s = None
    if state.fleet is not None and state.fleet.silent:
        suspicion.last.clear()
        suspicion.next_look_s = now_s + state.settings.look_gap_s
        return []
    if event.folder:
        suspicion.looks.append(event.folder)
    for look in event.ranks:
        if look.global_rank in attempt.ranks and attempt.ranks[look.global_rank].exitcode is None:
            _note_stop(attempt, look.global_rank, look.process.state, look.at_s)
    judged = _judge_all(attempt, suspicion, event, state.settings.floor_s)
    if not judged:
        is_early = now_s - silence_began_s(attempt) < state.settings.floor_s
        is_quick = attempt.stopped or is_early or any(look.gc_since_s for look in event.ranks)
        suspicion.next_look_s = now_s + (QUICK_LOOK_S if is_quick else state.settings.look_gap_s)
        return []
    by_rank = {j.global_rank: j for j in judged}
    ended = [n for n, rank in attempt.ranks.items() if rank.exitcode == 0]
    matched = match(event.ranks)
    found = find(judged, ended, state.settings, matched)
    suspicion.places = {r: j.place for r, j in by_rank.items() if j.place and j.doing is not RankActivity.WAITING}
    actions = observe(state, LookJudged(by_rank, event.ranks, suspicion.looks), now_s)
    if found is None:
        return actions + _nothing_found(state, judged, now_s)
    return actions + _found(state, found, JudgedSnapshot(by_rank, event, matched), now_s)


def _judge_all(attempt: Attempt, suspicion: Suspicion, event: ev.LookTaken, floor_s: float) -> list[Judgement]:
    """Judge every living rank against the look before; empty where there is none of a rank yet.

    A first look vouches for floor_s before it: what was before that, in a silence that began earlier, nobody has seen.
    """
    judged = []
    is_whole = True
    for look in event.ranks:
        rank = look.global_rank
        old, suspicion.last[rank] = suspicion.last.get(rank), look
        suspicion.unmoved_since_s.setdefault(rank, look.at_s - floor_s)
        if old is None or old.process.pid != look.process.pid or look.at_s <= old.at_s:
            is_whole = False
            continue
        judgement = judge(old, look, has_ended=rank in attempt.ranks and attempt.ranks[rank].has_ended)
        judgement = over_looks(suspicion.loops, judgement, old, look, suspicion.unmoved_since_s[rank])
        judgement = with_device(judgement, old, look)
        judgement = _with_waking(suspicion, judgement)
        judged.append(judgement)
        if judgement.doing is RankActivity.SPINNING and rank in suspicion.loops:
            suspicion.unmoved_since_s[rank] = suspicion.loops[rank].began_s(look.at_s)
        if judgement.doing is RankActivity.BUSY:
            suspicion.unmoved_since_s[rank] = suspicion.moved_s[rank] = look.at_s
    if not is_whole:
        return []
    seen = {look.global_rank for look in event.ranks}
    for number, state in attempt.ranks.items():
        if number not in seen and state.exitcode is None:
            judged.append(unlooked(number, event.missing.get(number, "")))
    return judged


def _with_waking(suspicion: Suspicion, judgement: Judgement) -> Judgement:
    """The judgement on a rank that sleeps, with whether it has been seen to wake up since anything else moved."""
    rank = judgement.global_rank
    if judgement.doing is not RankActivity.IDLE:
        suspicion.awake.discard(rank)
    elif judgement.is_awake:
        suspicion.awake.add(rank)
    elif rank in suspicion.awake:
        return msgspec.structs.replace(judgement, is_awake=True)
    return judgement


def with_device(judgement: Judgement, before: RankLook, after: RankLook) -> Judgement:
    """The judgement, where what the rank really does is to wait for a collective of its device."""
    if judgement.doing in _ON_DEVICE and (op := waits_on_device(before, after)):
        reason = f"its device has not completed {op}"
        return msgspec.structs.replace(judgement, doing=RankActivity.WAITING, reason=reason, waits_in=op)
    return judgement


def _found(state: State, found: Finding, seen: JudgedSnapshot, now_s: float) -> list[Action]:
    """It looks like a hang: a verdict once that has been so for long enough, and was seen so twice in a row."""
    suspicion = state.suspicion
    assert suspicion is not None
    is_sure = found.is_proof or found.is_certain or found.doing is RankActivity.COLLECTING
    if not is_sure and now_s - silence_began_s(attempt_of(state)) < state.settings.floor_s:
        _no_proof(state, now_s)
        return []
    left_s = hang_verdicts.left_s(state, found, seen, now_s)
    key = f"{found.cause}:{found.culprits}:{found.told}"
    is_confirmed, suspicion.found_key = found.is_proof or key == suspicion.found_key, key
    if suspicion.is_forced or (left_s <= 0.05 and is_confirmed):
        return hang_verdicts.verdict(state, found, seen, now_s)
    actions = []
    if is_confirmed:
        lasted_s = hang_verdicts.told_s(state, found, seen.event.ranks, now_s)
        actions = stalls.on_found(state, found, seen, lasted_s=lasted_s, left_s=left_s, now_s=now_s)
    suspicion.busy_looks = suspicion.busy_looks + 1 if found.doing in DOUBTFUL else 0
    # Soon enough to tell and to decide in time, seldom enough to cost nothing.
    shortest_s = QUICK_LOOK_S if is_confirmed or found.is_certain else state.settings.look_gap_s
    due_s = [left_s, _wait_s(state, suspicion)]
    if suspicion.stall is None:
        due_s.append(silence_began_s(attempt_of(state)) + stalls.tell_s(state, found) - now_s)
    suspicion.next_look_s = now_s + max(shortest_s, min(due_s))
    return actions


def _nothing_found(state: State, judged: list[Judgement], now_s: float) -> list[Action]:
    """Somebody gets somewhere, or seems to: look again later, ever more seldom unless it may be in a loop."""
    suspicion = state.suspicion
    assert suspicion is not None
    if suspicion.is_forced:
        return operator_restart.stop(state, now_s)
    actions = stalls.on_nothing_found(state, suspicion, now_s)
    suspicion.found_key = ""
    if now_s - silence_began_s(attempt_of(state)) < state.settings.floor_s:
        _no_proof(state, now_s)
        return actions
    suspicion.busy_looks = 0 if may_loop(suspicion.loops, judged) else suspicion.busy_looks + 1
    suspicion.next_look_s = now_s + _wait_s(state, suspicion)
    return actions


def _wait_s(state: State, suspicion: Suspicion) -> float:
    return min(state.settings.look_every_s * float(1.3**suspicion.busy_looks), BUSY_LOOK_MAX_S)
