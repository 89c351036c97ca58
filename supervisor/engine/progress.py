"""How far ranks have come, and how they end: facts, booked before any detector judges them.

What is done with every report must not grow with the number of ranks.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.failures.root_cause import SYSTEM_EXIT
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.derived_events import ExitBooked
from guardrun.supervisor.engine.model.lost_time import REDOING, TRAINING
from guardrun.supervisor.engine.model.run_view import silence_began_s
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import all_ranks_text
from guardrun.supervisor.engine.recovery import resumption
from guardrun.supervisor.engine.recovery.decide import announce, observe, stop
from guardrun.supervisor.engine.recovery.preemption import is_end_of_notice
from guardrun.supervisor.engine.recovery.recovered import close_recovered
from guardrun.supervisor.engine.recovery.voluntary import batch_skips
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import Attempt, RankState, State, attempt_of

_STOPPED = ("T", "t")


def on_node_report(state: State, event: ev.NodeReport, now_s: float) -> list[Action]:
    """Book the progress of one node's ranks."""
    attempt = attempt_of(state)
    if event.attempt != attempt.number:
        return []
    advanced_s = 0.0
    for report in event.ranks:
        rank = attempt.ranks.get(report.global_rank)
        if rank is not None:
            advanced_s = max(advanced_s, _take_report(attempt, rank, report, now_s))
    attempt.steprate.add(now_s, attempt.step)
    actions = resumption.on_report(state, now_s) if state.phase is Phase.RUNNING else []
    return actions + _advanced(state, advanced_s, now_s) if advanced_s else actions


def on_look_taken(state: State, event: ev.LookTaken, now_s: float) -> list[Action]:
    """A look is the newest that is known of who is stopped."""
    attempt = attempt_of(state)
    for look in event.ranks if event.attempt == attempt.number else ():
        if look.global_rank in attempt.ranks and attempt.ranks[look.global_rank].exitcode is None:
            _note_stop(attempt, look.global_rank, look.process.state, look.at_s)
    return []


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
        attempt.tied[rank.rank.node] = None
    rank.milestones, rank.is_save_held = report.milestones, report.is_save_held
    rank.phase = report.phase
    if report.metrics is not None:
        rank.metrics = msgspec.structs.replace(report.metrics, odd=[]) if report.metrics.odd else report.metrics
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
    """The job has got somewhere: learn the gap, book the time."""
    attempt = attempt_of(state)
    if state.phase is not Phase.RUNNING:
        return []  # what ranks still do while they are being stopped
    attempt.gap_s = at_s - silence_began_s(attempt)
    attempt.advances += 1
    if attempt.has_progress and not attempt.stopped:
        state.gaps.add(attempt.gap_s, at_s)
    attempt.has_progress = True
    attempt.progress_s = max(attempt.progress_s, at_s)
    use = TRAINING if attempt.step > state.best_step or not state.best_step else REDOING
    if use != state.ledger.use:
        state.ledger.switch(use, now_s)
    return close_recovered(state, now_s) if state.open_incidents else []


# Ends --------------------------------------------------------------------------------------------------


def on_rank_exited(state: State, event: ev.RankExited, now_s: float) -> list[Action]:
    """Book a rank's end; detectors are told of one that is news and no consequence of the job's end."""
    attempt = attempt_of(state)
    rank = attempt.ranks.get(event.global_rank)
    if event.attempt != attempt.number or rank is None or rank.exitcode is not None:
        return []
    at_s = min(event.at_s, now_s)  # another node's clock may be ahead; what it led to cannot come before it
    note_exit(attempt, rank, event.exitcode, at_s)
    rank.refusal = event.refusal
    if state.phase is not Phase.RUNNING:
        return []
    if event.exitcode != 0 and is_end_of_notice(state, event.exitcode):
        # Those that save by themselves are left the time for it.
        is_over = not attempt.alive or not state.notice.is_forwarded
        return stop(state, at_s, now_s) if is_over else []
    if event.exitcode != 0:
        attempt.fell_s = min(attempt.fell_s or at_s, at_s)
    return observe(state, ExitBooked(event.global_rank, event.exitcode, at_s), now_s)


def note_exit(attempt: Attempt, rank: RankState, exitcode: int, at_s: float) -> None:
    """Book the end of a rank; only once, since it counts the living down. exitcode: as subprocess has it."""
    number = rank.rank.global_rank
    rank.exitcode, rank.exited_s, rank.state = exitcode, at_s, "X"
    attempt.stopped.pop(number, None)
    attempt.collecting.pop(number, None)
    attempt.waiting.pop(number, None)
    attempt.alive -= 1


def on_uncaught_exception(state: State, event: ev.UncaughtExceptionReported, now_s: float) -> list[Action]:
    """Keep the exception as evidence."""
    attempt = attempt_of(state)
    if event.attempt == attempt.number and event.global_rank in attempt.ranks:
        attempt.ranks[event.global_rank].error = event.error
    return []


def on_rank_ended(state: State, event: ev.RankEnded, now_s: float) -> list[Action]:
    """Its script came to its end: an exit after that, by a stop, say, is no failure."""
    attempt = attempt_of(state)
    if event.attempt == attempt.number and event.global_rank in attempt.ranks:
        attempt.ranks[event.global_rank].has_ended = True
    return []


def on_exits_read(state: State, event: ev.ExitsRead, now_s: float) -> list[Action]:
    """Keep the exceptions that ranks left behind where nobody told them, if they are still wanted."""
    if not state.detectors.rank_failure.takes_exits(event.attempt, state):
        return []
    for trace in event.traces:
        rank = attempt_of(state).ranks.get(trace.global_rank)
        if rank is not None and trace.error and rank.error is None and not _is_stale_exit(rank, trace.error):
            rank.error = trace.error
    return []


def _is_stale_exit(rank: RankState, error: ev.ErrorRecord) -> bool:
    """The words of a `sys.exit` that somebody caught: its own ends a rank with 1."""
    return error.error == SYSTEM_EXIT and rank.exitcode != 1


def on_batches_left_out(state: State, event: ev.BatchesLeftOut, now_s: float) -> list[Action]:
    """Book it; once all ranks have done so, it is said."""
    order = next((one for one in state.skip_orders if one.id == event.order), None)
    if order is None or state.attempt is None or event.attempt != state.attempt.number:
        return []
    if event.global_rank not in order.ranks:
        return []
    booked = [one for one in state.left_out if one["incident"] == order.incident and one["attempt"] == event.attempt]
    entry = next((one for one in booked if one["order"] == order.id), None)
    if entry is None:
        entry = {"order": order.id, "incident": order.incident, "attempt": event.attempt, "step": order.step}
        entry["ranks"] = {}
        booked.append(entry)
        state.left_out.append(entry)
    entry["ranks"][str(event.global_rank)] = event.batches
    if len(entry["ranks"]) < len(order.ranks):
        return []
    all_of: dict[int, list[list[int]]] = {}
    for one in booked:
        for rank, batches in one["ranks"].items():
            all_of[int(rank)] = [*all_of.get(int(rank), []), *batches]
    incident, count = state.incidents[order.incident], len(event.batches)
    what = f"{count} batches" if count > 1 else "the batch"
    text = f"incident {incident.id}: {what} of step {order.step} left out on {all_ranks_text(len(order.ranks))}"
    evidence = {**incident.evidence, "left_out_batches": batch_skips.show(all_of)}
    return [change(state, incident.id, evidence=evidence), announce(text, "good")]
