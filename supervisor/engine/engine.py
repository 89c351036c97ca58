"""The engine: events in, actions out, and no other way in or out.

    Engine.handle(event, now_s) -> actions
    Engine.tick(now_s)          -> actions     due only when next_deadline_s() has come
    Engine.snapshot() / Engine.restore()

It has no clock, thread, socket, file or process. `now_s` never goes back (the edge sees to that). The same events
in the same order always give the same actions: that is what `guardctl replay` checks, how a restarted supervisor finds
its state again, and how thousands of virtual ranks are simulated. Every action that ends comes back as an event, a
failed or late one too; what does not come back is asked for again at a deadline, so that nothing can wedge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from guardrun.supervisor.engine import attempts, progress
from guardrun.supervisor.engine.membership import formation, node_checks, node_contact, node_silence
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, FinishRun, Isolate
from guardrun.supervisor.engine.model.derived_events import TickBegan
from guardrun.supervisor.engine.model.lost_time import OTHER, STARTING
from guardrun.supervisor.engine.model.run_view import silence_began_s
from guardrun.supervisor.engine.model.transitions import (
    IGNORE,
    OBSERVED,
    InvalidTransition,
    Phase,
    PhaseChanged,
    find_transition,
)
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.engine.recovery import (
    data_replay,
    eviction,
    going_back,
    in_time_save,
    interval_save,
    launcher_orders,
    memory_save,
    operator_restart,
    preemption,
    requeue,
    resumption,
)
from guardrun.supervisor.engine.recovery.decide import announce, observe, renew_hand_changes
from guardrun.supervisor.engine.recovery.restart_policy import decide_restart
from guardrun.supervisor.engine.recovery.run_summary import record_attempt, summary
from guardrun.supervisor.engine.state import hand_changes, incidents
from guardrun.supervisor.engine.state.job_nodes import carried_over
from guardrun.supervisor.engine.state.state import Notice, State

STORY_LENGTH = 20
EXAMINED_S = 15.0
"""After a rank was to be done with examining itself: until it is as fast as it was."""


class Engine:
    """One run's brain."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()

    @property
    def last_s(self) -> float:
        """When the last event came."""
        return self.state.last_s

    @classmethod
    def restore(cls, snapshot: bytes) -> Engine:
        """Make the engine that took this snapshot. Raises msgspec.DecodeError."""
        return cls(msgspec.json.decode(snapshot, type=State))

    def snapshot(self) -> bytes:
        """Everything it remembers, as JSON."""
        return msgspec.json.encode(self.state)

    def handle(self, event: ev.Event, now_s: float) -> list[Action]:
        """Take in one fact. What a bug of ours raises (InvalidTransition) leaves it half changed."""
        state = self.state
        # Rounded as the journal writes it, so that a replay decides by the very same number.
        now_s = max(round(float(now_s), 6), state.last_s)
        phase, (name, ends) = state.phase, find_transition(state.phase, event, state.story)
        state.story.append(f"{type(event).__name__}@{now_s:.3f}")
        if len(state.story) > STORY_LENGTH:
            del state.story[0]
        if name == IGNORE:
            actions = []
        else:
            actions = _HANDLERS[name](state, event, now_s) if name != OBSERVED else []
            actions += observe(state, event, now_s)
            if state.phase is Phase.STOPPING:
                actions += decide_restart(state, now_s)
            if state.phase is not phase:
                actions += observe(state, PhaseChanged(phase, state.phase), now_s)
        if state.phase not in ends:
            raise InvalidTransition(phase, event, state.story, state.phase)
        state.nodes.unsettled.update({a.node: a.incident for a in actions if isinstance(a, Isolate)})
        state.last_s = now_s
        return actions

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due; nothing (and nothing changes) before next_deadline_s()."""
        due_s = self.next_deadline_s()
        if due_s is None or now_s < due_s:
            return []
        return self.handle(ev.Ticked(), now_s)

    def next_deadline_s(self) -> float | None:
        """When tick next has something to do; None while only events matter."""
        times = [self.state.detectors.next_deadline_s(self.state), launcher_orders.due_s(self.state)]
        times += [node_silence.due_s(self.state), preemption.due_s(self.state), memory_save.due_s(self.state)]
        times += [interval_save.due_s(self.state)]
        times += [going_back.due_s(self.state), in_time_save.due_s(self.state)]
        if self.state.phase is Phase.RUNNING:
            times.append(resumption.due_s(self.state))
        due_s = min((t for t in times if t is not None), default=None)
        # The microsecond after it, which is all that `handle` knows: a tick must come neither just before it is due,
        # nor at the very moment, for which a difference of two floats may say that it is still to come.
        return None if due_s is None else (math.floor(due_s * 1e6 + 0.5) + 1) / 1e6

    def summary(self, now_s: float) -> Any:
        """summary.json's content as of now, for a live status."""
        return summary(self.state, now_s)


def _on_run_opened(state: State, event: ev.RunOpened, now_s: float) -> list[Action]:
    state.run_id, state.node, state.world_size = event.run_id, event.node, event.world_size
    state.settings = event.settings
    state.opened_s = now_s
    state.ledger.since_s = now_s
    # The launcher answers an order that it has carried out with all that came of it.
    state.next_attempt = event.attempt
    state.notice.since_s = now_s
    state.fleet = carried_over(None, event.fleet)
    state.session = event.session
    if event.session > 0:
        # Whatever it saved is there: to begin anew would write over it.
        said = (
            "nothing is recorded of what this run has done before: it goes on from the newest checkpoint that it wrote"
        )
        return [announce(f"{said}, if there is one", level="warn"), *launcher_orders.choose(state, now_s)]
    if event.settings.resume_first:
        return launcher_orders.choose(state, now_s)
    return formation.launch(state, now_s)


def _on_run_continued(state: State, event: ev.RunContinued, now_s: float) -> list[Action]:
    """A new guardrun: nothing of what ran before is alive. History and budgets stay."""
    attempt = state.attempt
    if attempt is not None:
        attempt.ended_s = attempt.ended_s or state.last_s
        attempt.alive = 0
        record_attempt(state, "guardrun ended")
        state.next_attempt = attempt.number + 1
    state.settings, state.node, state.world_size = event.settings, event.node, event.world_size
    state.session = event.session
    node_checks.look_again(state)
    state.fleet = carried_over(state.fleet, event.fleet)
    state.resuming_incident = state.notice.incident_id or state.resuming_incident
    state.notice = Notice(since_s=now_s)
    state.is_detailed = state.is_restart = state.may_go_on = False
    state.verdict_incident, state.signum, state.signalled, state.is_held = "", 0, "", False
    state.outcome, state.give_up_reason, state.exit_code, state.requeue = "running", "", 0, ""
    state.nodes.awaited.clear()
    # Nothing is known of the time since the last event: whatever ran then was not this run for long.
    state.ledger.reclassify(OTHER, state.last_s, now_s)
    state.ledger.switch(STARTING, now_s)
    return [*eviction.isolate_again(state, now_s), *launcher_orders.choose(state, now_s)]


def _on_supervisor_restarted(state: State, event: ev.SupervisorRestarted, now_s: float) -> list[Action]:
    """Ask again for whatever was under way: its answer went to the supervisor that died."""
    actions = in_time_save.give_up(state, "the supervisor was started anew")
    actions += launcher_orders.order_again(state, now_s) + preemption.order_again(state, now_s)
    actions += memory_save.order_again(state) + going_back.order_again(state, now_s)
    if state.phase is Phase.CHECKING:
        actions += formation.give_up_check(state, "the supervisor was started anew", now_s)
    actions += eviction.isolate_again(state, now_s)
    if state.fleet is not None:
        node_silence.forgive_silence(state.fleet, now_s)
    if state.phase is Phase.ENDED:
        actions.append(FinishRun(exit_code=state.exit_code, summary=summary(state, now_s)))
    return actions


def _on_time_skipped(state: State, event: ev.TimeSkipped, now_s: float) -> list[Action]:
    """Nobody's hang: what has lasted until now has lasted gap_s less, and stops and collections begin to count now."""
    attempt = state.attempt
    if attempt is not None:
        attempt.skipped_to_s = min(silence_began_s(attempt) + event.gap_s, now_s)
        attempt.stopped = dict.fromkeys(attempt.stopped, now_s)
        attempt.collecting = dict.fromkeys(attempt.collecting, now_s)
        memory_save.on_time_skipped(state, event.gap_s, now_s)
        going_back.on_time_skipped(state, event.gap_s)
        in_time_save.on_time_skipped(state, event.gap_s)
    state.ordered_s = min(state.ordered_s + event.gap_s, now_s)
    if state.fleet is not None:
        node_silence.skip(state.fleet, event.gap_s, now_s)
    state.nodes.awaited = {node: at_s + event.gap_s for node, at_s in state.nodes.awaited.items()}
    state.ledger.reclassify(OTHER, now_s - event.gap_s, now_s)
    return []


def _on_hold_set(state: State, event: ev.HoldSet, now_s: float) -> list[Action]:
    if event.is_held == state.is_held:
        return []
    state.is_held = event.is_held
    said = "held" if event.is_held else "no longer held"
    actions: list[Action] = [announce(f"{said} by {event.who}", level="info")]
    return actions if state.is_held else actions + going_back.on_released(state, now_s)


def _on_examination_asked(state: State, event: ev.ExaminationAsked, now_s: float) -> list[Action]:
    attempt = state.attempt
    if attempt is None or event.attempt != attempt.number:
        return []
    attempt.examined_to_s = max(attempt.examined_to_s, now_s + event.seconds + EXAMINED_S)
    said = f"{event.who} has {ranks_text(event.global_ranks)} examined for {event.seconds:.0f} s ({event.what})"
    return [announce(said, level="info")]


def _on_hand_change_asked(state: State, event: ev.HandChangeAsked, now_s: float) -> list[Action]:
    attempt = state.attempt
    if attempt is None or event.attempt != attempt.number:
        return []
    attempt.examined_to_s = max(attempt.examined_to_s, now_s + event.seconds + EXAMINED_S)
    state.by_hand = hand_changes.begin(state.by_hand, event, now_s)
    if event.verb != "eval":
        return []
    return [announce(f"{event.who} runs code in {ranks_text(event.global_ranks)} (guardctl eval)", level="info")]


def _on_hand_change_ended(state: State, event: ev.HandChangeEnded, now_s: float) -> list[Action]:
    state.by_hand, change = hand_changes.end(state.by_hand, event)
    if change is None or not change.changes:
        return []
    said = announce(f"changed by hand: {hand_changes.said(change)} ({change.who})", level="info")
    return [said, *renew_hand_changes(state, change)]


def _on_tick(state: State, event: ev.Ticked, now_s: float) -> list[Action]:
    actions = observe(state, TickBegan(), now_s)
    actions += launcher_orders.on_tick(state, now_s) + node_silence.on_tick(state, now_s)
    actions += preemption.on_tick(state, now_s)
    if state.settings.rolls_back:
        actions += going_back.on_tick(state, now_s)
    if state.settings.saves_before_oom:
        actions += memory_save.on_tick(state, now_s)
    if state.settings.auto_interval:
        actions += interval_save.on_tick(state, now_s)
    if state.phase is Phase.RUNNING:
        actions += resumption.on_report(state, now_s)
    elif state.phase is Phase.STOPPING:
        actions += in_time_save.on_tick(state, now_s)
    return actions


def _on_checkpoint_loaded(state: State, event: ev.CheckpointLoaded, now_s: float) -> list[Action]:
    if state.attempt and event.attempt == state.attempt.number:
        resumption.note_resumed(state, state.attempt)
    return []


def _on_checkpoint_opened(state: State, event: ev.CheckpointOpened, now_s: float) -> list[Action]:
    resumption.on_opened(state, event)
    return []


def _on_checkpoint_saved(state: State, event: ev.CheckpointSaved, now_s: float) -> list[Action]:
    """The journal remembers it; choosing is the edge's. What is written anew is worth another try."""
    state.avoid = [path for path in state.avoid if event.path != path and not event.path.startswith(f"{path}/")]
    requeue.note_saved(state, max(event.step, event.named_step))
    actions = resumption.on_saved(state, event, now_s) if state.phase is Phase.RUNNING else []
    if state.phase is not Phase.RUNNING:
        return actions
    actions += memory_save.on_saved(state, event, now_s)
    interval_save.on_saved(state, now_s)
    return actions


def _on_checkpoint_completed(state: State, event: ev.CheckpointCompleted, now_s: float) -> list[Action]:
    """One that was asked for, because the job ends or because memory runs out: each request has its own number."""
    actions = preemption.on_checkpoint_completed(state, event, now_s)
    return actions + memory_save.on_checkpoint_completed(state, event, now_s)


def _on_hooks_missing(state: State, event: ev.HooksMissing, now_s: float) -> list[Action]:
    attempt = state.attempt
    if attempt is None or event.attempt != attempt.number:
        return []
    if len(event.global_ranks) == len(attempt.ranks):
        attempt.has_hooks = False
    if "hooks" in state.notes:
        return []
    state.notes.append("hooks")
    ranks = ", ".join(map(str, event.global_ranks))
    return [announce(f"rank {ranks} runs without hooks ({event.reason}): watched from outside", level="warn")]


def _on_requeued(state: State, event: ev.Requeued, now_s: float) -> list[Action]:
    if state.phase is Phase.GATHERING:
        return formation.on_requeued(state, event, now_s)
    return requeue.on_requeued(state, event, now_s)


_HANDLERS: dict[str, Callable[[State, Any, float], list[Action]]] = {
    "on_run_opened": _on_run_opened,
    "on_run_continued": _on_run_continued,
    "on_supervisor_restarted": _on_supervisor_restarted,
    "on_time_skipped": _on_time_skipped,
    "on_hold_set": _on_hold_set,
    "on_tick": _on_tick,
    "on_checkpoint_loaded": _on_checkpoint_loaded,
    "on_checkpoint_saved": _on_checkpoint_saved,
    "on_checkpoint_opened": _on_checkpoint_opened,
    "on_saved_in_time": in_time_save.on_saved,
    "on_saved_while_training": preemption.on_saved_while_training,
    "on_batches_left_out": progress.on_batches_left_out,
    "on_data_replayed": data_replay.on_data_replayed,
    "on_history_loaded": incidents.on_history_loaded,
    "on_not_isolated": node_contact.on_not_isolated,
    "on_isolation_settled": node_contact.on_isolation_settled,
    "on_node_released": node_contact.on_node_released,
    "on_node_joined": node_contact.on_node_joined,
    "on_node_suspected": node_silence.on_node_suspected,
    "on_node_contact_restored": node_contact.on_node_contact_restored,
    "on_node_left": node_contact.on_node_left,
    "on_node_absent": node_contact.on_node_absent,
    "on_nodes_checked": formation.on_nodes_checked,
    "on_preemption_noticed": preemption.on_preemption_noticed,
    "on_scheduler_status_changed": preemption.on_scheduler_status_changed,
    "on_checkpoint_asked": preemption.on_checkpoint_asked,
    "on_checkpoint_answered": preemption.on_checkpoint_answered,
    "on_checkpoint_completed": _on_checkpoint_completed,
    "on_requeued": _on_requeued,
    "on_hooks_missing": _on_hooks_missing,
    "on_examination_asked": _on_examination_asked,
    "on_hand_change_asked": _on_hand_change_asked,
    "on_hand_change_ended": _on_hand_change_ended,
    "on_restart_asked": operator_restart.on_restart_asked,
    "on_attempt_started": attempts.on_attempt_started,
    "on_attempt_restarted": attempts.on_attempt_restarted,
    "on_attempt_not_started": attempts.on_attempt_not_started,
    "on_attempt_stopped": attempts.on_attempt_stopped,
    "on_rank_exited": progress.on_rank_exited,
    "on_uncaught_exception": progress.on_uncaught_exception,
    "on_rank_ended": progress.on_rank_ended,
    "on_exits_read": progress.on_exits_read,
    "on_checkpoint_chosen": attempts.on_checkpoint_chosen,
    "on_sound_looked_for": going_back.on_looked,
    "on_stop_requested": attempts.on_stop_requested,
    "on_node_report": progress.on_node_report,
    "on_look_taken": progress.on_look_taken,
}
