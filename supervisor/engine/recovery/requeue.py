"""Starting the job again: whether its scheduler is asked to requeue it, and the run's end, which follows the answer."""

from __future__ import annotations

import signal

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, Requeue
from guardrun.supervisor.engine.model.lost_time import OTHER
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import eviction
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.preemption_incident import report_preemption
from guardrun.supervisor.engine.recovery.run_summary import finish, stop_words, summary
from guardrun.supervisor.engine.state.state import TIME_LIMIT, State, enter

ANSWER_S = 30.0
"""A last look for a checkpoint, or a requeue, that nobody answered for this long is not waited for any more."""
PATIENCE_S = 600.0
"""A scheduler that does not answer is asked again for so long at most: its controller is restarted in less."""
LAST_S = 2.0
"""Before the job's end: for the record of a requeue that could not be made."""
WARNED_S = 1800.0
"""A warning signal that comes so long before the job's time limit, or later, is that limit's."""
RUNNING = "running"
"""SchedulerTold.why: the job goes on, as far as the scheduler knows."""
CANCELLED = "cancelled"
"""SchedulerTold.why: a person wants the end."""
TERM = int(signal.SIGTERM)
RESERVE_S = 5.0
"""After the last rank has ended: for the record, and for the requeue."""


def on_requeued(state: State, event: ev.Requeued, now_s: float) -> list[Action]:
    """The scheduler's answer."""
    notice = state.notice
    if not notice.asked_s or notice.is_sought:
        return []
    notice.is_requeued = event.is_done
    note_answer(state, event)
    return _answered(state, event.why, now_s)


def note_answer(state: State, event: ev.Requeued) -> None:
    """For whoever comes later: is it still to be asked for?"""
    state.requeue = "done" if event.is_done else "unanswered" if event.is_silent else "refused"


def on_no_answer(state: State, now_s: float) -> list[Action]:
    """Not even the supervisor's own threads have said anything."""
    state.requeue = "unanswered"
    return _answered(state, f"no answer for {now_s - state.notice.asked_s:.0f} s", now_s)


def on_stop(state: State, event: ev.StopRequested, now_s: float) -> list[Action]:
    """A person, or the scheduler's last word, while the requeue is awaited."""
    notice = state.notice
    signum = event.signum
    if notice.is_held:
        state.signum, state.signalled = signum, event.node
        if signum == signal.SIGINT:
            return finish(state, "interrupted", 128 + signum, stop_words(state), now_s)
        notice.deadline_s = min(notice.deadline_s, now_s)  # why is waited for no longer
        return []
    if not notice.asked_s or notice.is_sought:
        return []
    state.signum, state.signalled = signum, event.node
    state.requeue = "refused" if signum == signal.SIGINT else "unanswered"
    if notice.cause:
        return _answered(state, f"{signal.Signals(signum).name} came first", now_s)
    return finish(state, "interrupted", 128 + signum, stop_words(state), now_s)


def _answered(state: State, why: str, now_s: float) -> list[Action]:
    notice = state.notice
    notice.asked_s, notice.until_s, notice.requeue_why = 0.0, 0.0, why
    return finish_run(state, now_s) if notice.cause else moved(state, now_s)


def requeue(state: State, exclude: list[str], until_s: float, now_s: float) -> Requeue:
    """Have the job started again; state tells how the run has ended until then."""
    state.requeue = "asked"
    return Requeue(exclude=exclude, until_s=round(until_s, 3), summary=summary(state, now_s))


def _until_s(state: State, now_s: float) -> float:
    """As long as the job has, as far as that is known."""
    notice, most_s = state.notice, now_s + PATIENCE_S
    if not notice.cause:
        return most_s
    end_s = notice.end_s if notice.end_s > now_s else notice.deadline_s + state.settings.stop_grace_s + RESERVE_S
    return min(max(end_s - LAST_S, now_s), most_s)


def may_move(state: State) -> bool:
    """Whether the job can start again elsewhere, where this node is not to be trained on any more."""
    return state.settings.act and state.notice.may_requeue and _wants_requeue(state)


def move(state: State, reason: str, now_s: float) -> list[Action]:
    """Nothing is alive: end the run unfinished, for the job to go on without the nodes that are left out."""
    enter(state, Phase.ENDING)
    state.ledger.switch(OTHER, now_s)
    state.outcome, state.exit_code, state.give_up_reason = "interrupted", state.exit_code or 1, reason
    said = announce(f"{reason}: the job is requeued, to get another", level="warn")
    return [said, *eviction.at_end(state), ask(state, now_s)]


def ask(state: State, now_s: float) -> Requeue:
    """Ask for the requeue; its answer is awaited from now on."""
    notice = state.notice
    notice.asked_s, notice.until_s = now_s, _until_s(state, now_s)
    return requeue(state, sorted(state.nodes.isolated), notice.until_s, now_s)


def moved(state: State, now_s: float) -> list[Action]:
    """The run's end, after `move`."""
    notice = state.notice
    if notice.is_requeued:
        return finish(state, "interrupted", state.exit_code, state.give_up_reason, now_s)
    reason = f"{state.give_up_reason}; the job could not be requeued: {notice.requeue_why}"
    outcome = "interrupted" if state.requeue == "unanswered" else "gave_up"  # what gave up is not gone on with
    return [announce(f"giving up: {reason}", level="bad"), *finish(state, outcome, state.exit_code, reason, now_s)]


def requeue_or_finish(state: State, now_s: float) -> list[Action]:
    """The run's end after a notice; the job's next start is asked for before."""
    actions = report_preemption(state, now_s)
    if not _wants_requeue(state):
        return actions + finish_run(state, now_s)
    if _get_no_further(state):
        times = state.settings.max_no_progress
        far = f"than a checkpoint of step {state.saved_step}" if state.saved_step else "and saved nothing"
        state.notice.requeue_why = f"{times} requeues in a row got no further {far}"
        return actions + finish_run(state, now_s)
    return [*actions, order(state, now_s)]


def note_saved(state: State, step: int) -> None:
    """A checkpoint is known: the run has got so far, whatever becomes of it."""
    state.saves += 1
    state.saved_step = max(state.saved_step, step)


def _get_no_further(state: State) -> bool:
    """Whether as many requeues in a row as restarts may be have got no further. Books this one."""
    before, now = state.requeued_at, (state.saved_step, state.saves)
    is_further = before is None or now[0] > before[0] or (not now[0] and now[1] > before[1])
    state.idle_requeues = 0 if is_further else state.idle_requeues + 1
    state.requeued_at = now
    return state.idle_requeues >= state.settings.max_no_progress > 0


def _is_time_limit(state: State) -> bool:
    """Whether it is the job's own time limit that ends it, as far as that can be told of its warning signal."""
    notice = state.notice
    if TIME_LIMIT in (notice.cause, notice.why):
        return True
    is_warned = notice.signum != TERM and notice.why in ("", RUNNING)
    return is_warned and 0 < notice.end_s - notice.began_s <= max(state.settings.grace_s, WARNED_S)


def _wants_requeue(state: State) -> bool:
    notice, wish = state.notice, state.settings.requeue
    if wish == "never" or notice.why == CANCELLED:
        return False
    # A script that was given the signal may requeue by itself; a run without a name could not be continued.
    if wish != "always" and not (notice.may_requeue and state.settings.is_named and not notice.is_forwarded):
        return False
    if notice.cause and not state.settings.goes_past_limit and _is_time_limit(state):
        notice.requeue_why = 'its time limit is a limit; [preemption] requeue = "time_limit" goes beyond it'
        return False
    return True


def order(state: State, now_s: float) -> Action:
    """Have the job requeued, the run's end being written before."""
    state.outcome, state.exit_code, state.give_up_reason = _outcome(state)
    return ask(state, now_s)


def _outcome(state: State) -> tuple[str, int, str]:
    """A time limit brings SIGTERM, had it been waited for."""
    notice = state.notice
    reason = signal.Signals(notice.signum).name if notice.signum else "time limit"
    return "preempted", 128 + (state.signum or notice.signum or TERM), reason


def finish_run(state: State, now_s: float) -> list[Action]:
    """The run's end after a notice."""
    notice = state.notice
    actions = report_preemption(state, now_s)
    if notice.requeue_why and not notice.is_requeued:
        how = "could not be" if state.requeue else "is not"
        actions.append(announce(f"the job {how} requeued: {notice.requeue_why}", level="bad"))
    return actions + finish(state, *_outcome(state), now_s)
