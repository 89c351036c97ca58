"""Starting the job again: whether its scheduler is asked to requeue it, and the run's end, which follows the answer."""

from __future__ import annotations

import signal

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core.actions import Action, Requeue, Say
from guardrun.supervisor.core.endings import finish, summary
from guardrun.supervisor.core.ledger import OTHER
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.noticewords import tell
from guardrun.supervisor.core.state import State

ANSWER_S = 30.0
"""A last look for a checkpoint, or a requeue, that nobody answered for this long is not waited for any more."""
CANCELLED = "cancelled"
"""SchedulerTold.why: a person wants the end."""
TERM = int(signal.SIGTERM)


def on_requeued(state: State, event: ev.Requeued, now_s: float) -> list[Action]:
    """The scheduler's answer."""
    notice = state.notice
    if not notice.asked_s or notice.is_sought:
        return []
    notice.asked_s, notice.is_requeued, notice.requeue_why = 0.0, event.is_done, event.why
    return finish_run(state, now_s) if notice.cause else moved(state, now_s)


def may_move(state: State) -> bool:
    """Whether the job can start again elsewhere, where this node is not to be trained on any more."""
    return state.settings.act and state.notice.may_requeue and _wants_requeue(state)


def move(state: State, reason: str, now_s: float) -> list[Action]:
    """Nothing is alive: end the run unfinished, for the job to go on without the nodes that are left out."""
    state.phase, state.notice.asked_s = Phase.ENDING, now_s
    state.ledger.switch(OTHER, now_s)
    state.outcome, state.exit_code, state.give_up_reason = "interrupted", state.exit_code or 1, reason
    said = Say(text=f"{reason}: the job is requeued, to get another", level="warn")
    return [said, Requeue(exclude=sorted(state.nodes.isolated), summary=summary(state, now_s))]


def moved(state: State, now_s: float) -> list[Action]:
    """The run's end, after `move`."""
    notice = state.notice
    if notice.is_requeued:
        return finish(state, "interrupted", state.exit_code, state.give_up_reason, now_s)
    reason = f"{state.give_up_reason}; the job could not be requeued: {notice.requeue_why}"
    return [Say(text=f"giving up: {reason}", level="bad"), *finish(state, "gave_up", state.exit_code, reason, now_s)]


def requeue_or_finish(state: State, now_s: float) -> list[Action]:
    """The run's end after a notice; the job's next start is asked for before."""
    notice = state.notice
    actions = tell(state, now_s)
    if not _wants_requeue(state):
        return actions + finish_run(state, now_s)
    notice.asked_s = now_s
    return [*actions, order(state, now_s)]


def _wants_requeue(state: State) -> bool:
    notice, wish = state.notice, state.settings.requeue
    if wish == "never" or notice.why == CANCELLED:
        return False
    # A script that was given the signal may requeue by itself; a run without a name could not be continued.
    return wish == "always" or (notice.may_requeue and state.settings.is_named and not notice.is_forwarded)


def order(state: State, now_s: float) -> Action:
    """Have the job requeued, the run's end being written before."""
    state.outcome, state.exit_code, state.give_up_reason = _outcome(state)
    return Requeue(exclude=sorted(state.nodes.isolated), summary=summary(state, now_s))


def _outcome(state: State) -> tuple[str, int, str]:
    """A time limit brings SIGTERM, had it been waited for."""
    notice = state.notice
    reason = signal.Signals(notice.signum).name if notice.signum else "time limit"
    return "preempted", 128 + (state.signum or notice.signum or TERM), reason


def finish_run(state: State, now_s: float) -> list[Action]:
    """The run's end after a notice."""
    notice = state.notice
    actions = tell(state, now_s)
    if notice.requeue_why and not notice.is_requeued:
        actions.append(Say(text=f"the job could not be requeued: {notice.requeue_why}", level="bad"))
    return actions + finish(state, *_outcome(state), now_s)
