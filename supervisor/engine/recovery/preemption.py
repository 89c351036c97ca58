"""A job, or nodes of it, that a scheduler is about to end: the ranks save, the run ends unfinished.

PreemptionNoticed, or the time limit comes near
      → AskCheckpoint → CheckpointAsked, CheckpointAnswered …  training goes on
                      → or SaveInTime, where ranks do not ask, and their script has called save_with()
      → CheckpointCompleted, or the deadline → StopAttempt → AttemptStopped
      → SeekCheckpoint (where none was seen) → CheckpointCompleted
      → Requeue (where the scheduler lets us) → Requeued
      → FinishRun: outcome `preempted`

It is no failure: it uses up no restart and no patience with progress, and the same command again goes on from the
checkpoint. What falls meanwhile is told as ever, but nothing is started any more. SIGTERM says too little (a person's
scancel, a preemption and a time limit all send it): the ranks are asked at once, and the scheduler, too; where it says
that a person ends the job, the ranks are ended as by Ctrl-C. Ranks that are gone before it has answered, as those to
which it sends SIGTERM itself, are called nothing until it has, or the deadline is there.
"""

from __future__ import annotations

import signal

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, AskCheckpoint, SeekCheckpoint
from guardrun.supervisor.engine.model.derived_events import ExitsExplained
from guardrun.supervisor.engine.model.lost_time import OTHER
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import in_time_save
from guardrun.supervisor.engine.recovery.decide import announce, observe, stop
from guardrun.supervisor.engine.recovery.preemption_incident import report_preemption
from guardrun.supervisor.engine.recovery.requeue import (
    ANSWER_S,
    CANCELLED,
    RESERVE_S,
    RUNNING,
    TERM,
    ask,
    note_saved,
    on_no_answer,
    order,
    requeue_or_finish,
)
from guardrun.supervisor.engine.recovery.run_summary import finish, record_attempt, stop_words
from guardrun.supervisor.engine.recovery.voluntary import in_time
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import (
    SIGNAL,
    TIME_LIMIT,
    State,
    attempt_of,
    book_end,
    enter,
    next_request,
)

# Node drains --------------------------------------------------------------------------------------------------------
# Nodes that somebody has drained: what runs there goes on, and the next attempt takes others where it can.
#
# An administrator who drains a node wants it empty, or doubts it. Neither is worth a restart; but one that comes anyway
# may as well go to a spare. guardrun's own drains are not told here: what it drains it has left out already.


THERE = (Standing.READY, Standing.SILENT)


def note_drained(state: State, drained: dict[str, str] | None) -> list[Action]:
    """Take in which nodes are drained, and say what has changed. drained: None where it is not known."""
    fleet = state.fleet
    if fleet is None or drained is None:
        return []
    actions: list[Action] = []
    for name, member in fleet.members.items():
        why = drained.get(name, "")
        if why == member.drained:
            continue
        member.drained = why
        if member.standing in THERE:
            actions.append(announce(_words(fleet, member), level="info"))
    return actions


def _words(fleet: Fleet, member: Member) -> str:
    if not member.drained:
        return f"{member.node} is drained no more"
    said = f"{member.node} is drained ({member.drained})"
    if not member.is_placed:
        return f"{said}: it takes a place only where no other node can"
    waiting = [m for m in fleet.members.values() if m.standing is Standing.READY and not m.is_placed]
    has_other = any(not m.drained and m.ranks == member.ranks for m in waiting)
    return f"{said}: training there goes on{', until the next restart: a spare is there' if has_other else ''}"


# Preemption ---------------------------------------------------------------------------------------------------------


# Facts -------------------------------------------------------------------------------------------------


def on_preemption_noticed(state: State, event: ev.PreemptionNoticed, now_s: float) -> list[Action]:
    """A signal says that the end is near. A second one can only bring it nearer."""
    notice = state.notice
    name = signal.Signals(event.signum).name
    if not state.settings.act:
        return [announce(f"{name}: the job is about to end; [policy] act = false, so nothing is done", level="warn")]
    if notice.cause:
        if event.signum == TERM:
            notice.signum, notice.deadline_s = TERM, min(notice.deadline_s, _deadline_s(state, TERM, now_s))
            notice.is_why_awaited = event.is_why_asked
        return []
    notice.cause, notice.began_s = SIGNAL, min(event.at_s, now_s) or now_s
    notice.first = notice.signum = event.signum
    notice.is_forwarded, notice.catchers = event.is_forwarded, event.catchers
    notice.is_why_awaited = event.is_why_asked and event.signum == TERM
    notice.deadline_s = _deadline_s(state, event.signum, now_s)
    return _begin(state, now_s)


def on_scheduler_status_changed(state: State, event: ev.SchedulerStatusChanged, now_s: float) -> list[Action]:
    """When the job ends, as the scheduler has it now; after a SIGTERM also why. And which nodes are drained."""
    return note_drained(state, event.drained) + _note_end(state, event, now_s)


def _note_end(state: State, event: ev.SchedulerStatusChanged, now_s: float) -> list[Action]:
    notice = state.notice
    notice.end_s, notice.may_requeue = event.end_s, event.may_requeue
    is_late = notice.is_stopping or state.phase is Phase.ENDING
    if not notice.cause or (is_late and not notice.is_why_awaited):
        return []
    if event.why:
        notice.is_why_awaited = False
    if notice.signum == TERM:
        is_step_ended = event.why == RUNNING and notice.first == TERM  # whoever sent it wants this step to end
        if event.why == CANCELLED or is_step_ended:
            return _end_as_told(state, now_s)
        if event.why and event.end_s > now_s:
            notice.deadline_s = max(event.end_s - _reserve_s(state), now_s)
    else:
        notice.deadline_s = _bounded_s(state, notice.deadline_s, now_s)
    is_news = event.why not in ("", RUNNING, notice.why)
    if is_news:
        notice.why = event.why
    if notice.is_held:
        return wind_up(state, now_s) if event.why else []
    return report_preemption(state, now_s) if is_news else []


def on_checkpoint_asked(state: State, event: ev.CheckpointAsked, now_s: float) -> list[Action]:
    """Keep the call of should_checkpoint() at which the ranks will save; of the newest request alone.

    Ranks that do not ask have one save by the function that their script has given to save_with(), if it has.
    """
    notice = state.notice
    if event.request != notice.request:
        return []
    notice.at_call = event.at_call
    if event.at_call or not notice.cause or notice.is_stopping or state.phase is not Phase.RUNNING:
        return []
    begun = in_time.begin_while_training(state, now_s)
    if not isinstance(begun, str):
        return [begun]
    return [announce(begun, "warn")] if begun else []


def on_checkpoint_answered(state: State, event: ev.CheckpointAnswered, now_s: float) -> list[Action]:
    """A rank has been given yes, so that a save is under way; of the newest request alone."""
    if event.request == state.notice.request:
        state.notice.is_answered = True
    return []


def on_checkpoint_completed(state: State, event: ev.CheckpointCompleted, now_s: float) -> list[Action]:
    """A whole checkpoint newer than the request; or, once nothing is alive, that there is none."""
    notice = state.notice
    if event.request != notice.request or not notice.cause or in_time_save.is_awaited(state):
        return []
    if event.checkpoint is not None and notice.saved is None:
        notice.saved, notice.saved_s = event.checkpoint, now_s
        note_saved(state, event.checkpoint.step)
    if notice.is_sought:
        notice.is_sought, notice.asked_s = False, 0.0
        return requeue_or_finish(state, now_s)
    if state.phase is Phase.RUNNING and notice.saved is not None and not notice.is_stopping:
        return _stop(state, now_s)
    return []


def on_saved_while_training(state: State, event: ev.SavedInTime, now_s: float) -> list[Action]:
    """In RUNNING: a rank's own function has saved, or has not; then any other checkpoint is waited for."""
    said, notice = in_time_save.note(state, event), state.notice
    if not said:
        return []
    if event.checkpoint is None:
        return [*said, *_ask_anew(state, now_s)]
    notice.saved, notice.saved_s = event.checkpoint, now_s
    return [*said, *_stop(state, now_s)]


def _ask_anew(state: State, now_s: float) -> list[Action]:
    """Wait for another checkpoint than what such a save may have left behind."""
    attempt = attempt_of(state)
    attempt.skipped_to_s = min(attempt.skipped_to_s, now_s)
    if attempt.in_time is not None and attempt.in_time.is_doubtful:
        state.notice.saves_from_s = now_s
    return _request(state)


# For those who keep an attempt -------------------------------------------------------------------------


def is_end_of_notice(state: State, exitcode: int) -> bool:
    """Whether a rank that ended so did because of the notice: some schedulers signal every process of a job."""
    notice = state.notice
    if not notice.cause:
        return False
    own = {n for signum in (notice.signum, TERM) if signum for n in (-signum, 128 + signum)}
    return exitcode in own or notice.is_forwarded


def has_ended(state: State) -> bool:
    """Whether an attempt of which nothing is alive ended because of the notice, and not by itself."""
    notice = state.notice
    if not notice.cause or state.signum not in (0, TERM):
        return False
    if state.signum:
        return True  # a second SIGTERM: the scheduler waits no longer
    if state.is_failing:
        return False
    codes = [rank.exitcode for rank in state.attempt.ranks.values()] if state.attempt else []
    is_by_notice = any(code not in (None, 0) and is_end_of_notice(state, code) for code in codes)
    return notice.is_stopping or notice.is_answered or notice.is_forwarded or notice.saved is not None or is_by_notice


def wind_up(state: State, now_s: float) -> list[Action]:
    """Nothing is alive, and nothing more is to be started."""
    notice = state.notice
    enter(state, Phase.ENDING)
    book_end(state, OTHER, now_s)
    notice.is_held = notice.is_why_awaited and now_s < notice.deadline_s
    if notice.is_held:
        return []
    notice.is_why_awaited = False
    if state.attempt is not None:
        state.spoiled += in_time.spoiled(state.attempt, now_s, is_many=state.fleet is not None)
        record_attempt(state, "preempted")
    if notice.saved is None and notice.request:
        notice.is_sought, notice.asked_s = True, now_s
        return [_seek(state)]
    return requeue_or_finish(state, now_s)


def order_again(state: State, now_s: float) -> list[Action]:
    """A new supervisor knows of no request."""
    notice = state.notice
    if notice.asked_s and not notice.cause:
        return [ask(state, now_s)]
    if not notice.cause:
        return []
    if notice.is_sought:
        return [_seek(state)]
    if notice.asked_s:
        return [order(state, now_s)]
    if state.phase is Phase.RUNNING and notice.request and not notice.is_stopping:
        return _ask_anew(state, now_s)
    return []


# Deadlines ---------------------------------------------------------------------------------------------


def due_s(state: State) -> float | None:
    """When something is to be done about the job's end."""
    notice = state.notice
    if state.phase in (Phase.NEW, Phase.ENDED):
        return None
    if notice.asked_s:
        return max(notice.asked_s, notice.until_s) + ANSWER_S
    if notice.is_held:
        return notice.deadline_s
    if not notice.cause and state.signum:
        return None
    if not notice.cause:
        return _notice_s(state) if state.phase is not Phase.ENDING else None
    if state.phase is Phase.RUNNING and not notice.is_stopping:
        if not notice.request:
            return notice.began_s
        save = attempt_of(state).in_time if in_time_save.is_awaited(state) else None
        return notice.deadline_s if save is None else min(save.until_s, notice.deadline_s)
    return None


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    notice, at_s = state.notice, due_s(state)
    if at_s is None or now_s < at_s:
        return []
    if notice.is_held:
        return wind_up(state, now_s)
    if notice.asked_s and not notice.is_sought:
        return on_no_answer(state, now_s)
    if not notice.cause:
        notice.cause, notice.began_s = TIME_LIMIT, now_s
        notice.deadline_s = max(notice.end_s - _reserve_s(state), now_s)
        return _begin(state, now_s)
    if notice.is_sought:
        notice.is_sought, notice.asked_s = False, 0.0
        return requeue_or_finish(state, now_s)
    if not notice.request:
        return _request(state)
    if now_s < notice.deadline_s:
        return [*in_time_save.give_up(state, in_time_save.late(state)), *_ask_anew(state, now_s)]
    return _stop(state, now_s)


def _notice_s(state: State) -> float | None:
    """When a time limit is near enough: a job that is short altogether keeps half of its time for training."""
    settings, end_s = state.settings, state.notice.end_s
    if not end_s or not settings.save_before_end_s or not settings.act:
        return None
    return end_s - min(settings.save_before_end_s, max(end_s - state.notice.since_s, 0.0) / 2)


def _reserve_s(state: State) -> float:
    return state.settings.stop_grace_s + RESERVE_S


def _deadline_s(state: State, signum: int, now_s: float) -> float:
    """How long the ranks may take. SIGTERM is followed by SIGKILL after a time that the scheduler has fixed."""
    if signum == TERM:
        return max(now_s + state.settings.term_grace_s - _reserve_s(state), now_s)
    return _bounded_s(state, now_s + state.settings.grace_s, now_s)


def _bounded_s(state: State, deadline_s: float, now_s: float) -> float:
    end_s = state.notice.end_s
    return max(min(deadline_s, end_s - _reserve_s(state)), now_s) if end_s > now_s else deadline_s


# What is done ------------------------------------------------------------------------------------------


def _begin(state: State, now_s: float) -> list[Action]:
    notice = state.notice
    notice.saves_from_s = notice.began_s
    why = signal.Signals(notice.signum).name if notice.signum else "the time limit is near"
    actions: list[Action] = [announce(f"{why}: the job is about to end", level="warn")]
    if notice.signum != TERM:
        actions += report_preemption(state, now_s)
    if state.phase in (Phase.CHOOSING, Phase.GATHERING, Phase.CHECKING):
        return [*actions, *wind_up(state, now_s)]
    attempt = state.attempt
    if attempt is not None:
        codes = [rank.exitcode for rank in attempt.ranks.values() if rank.exitcode not in (None, 0)]
        if codes and all(is_end_of_notice(state, code) for code in codes if code is not None):
            actions += observe(state, ExitsExplained(), now_s)  # the signal met the ranks first
            if state.phase is Phase.STOPPING and attempt.ended_s is not None and not state.is_failing:
                return actions + wind_up(state, now_s)  # their exits were being read: nothing else would come
    if state.phase is Phase.RUNNING:
        actions += _request(state)
    return actions


def _request(state: State) -> list[Action]:
    """Ask the ranks to save; those that were given the signal do so by themselves."""
    state.notice.request = next_request(state)
    return _ask(state)


def _ask(state: State) -> list[Action]:
    notice = state.notice
    return [
        AskCheckpoint(
            request=notice.request,
            since_s=notice.saves_from_s,
            is_quiet=notice.is_forwarded,
            spoiled=in_time.in_doubt(state),
        )
    ]


def _seek(state: State) -> SeekCheckpoint:
    return SeekCheckpoint(request=state.notice.request, spoiled=list(state.spoiled))


def _stop(state: State, now_s: float) -> list[Action]:
    """Saved, or too late for it: the ranks get SIGTERM."""
    notice = state.notice
    notice.is_stopping = True
    actions = [] if notice.is_why_awaited else report_preemption(state, now_s)
    if notice.saved is None:
        waited = f"{now_s - notice.began_s:.0f} s"
        actions.append(
            announce(f"no whole checkpoint within {waited}: the ranks are stopped all the same", level="bad")
        )
    return actions + stop(state, now_s, now_s)


def _end_as_told(state: State, now_s: float) -> list[Action]:
    """A person ends the job: as by Ctrl-C."""
    state.signum, state.notice.cause = state.notice.signum, ""
    actions = observe(state, ExitsExplained(), now_s)
    if state.phase is Phase.RUNNING:
        return actions + stop(state, now_s, now_s)
    if state.phase is Phase.STOPPING and state.attempt is not None and state.attempt.ended_s is None:
        return actions
    return actions + finish(state, "interrupted", 128 + state.signum, stop_words(state), now_s)
