"""An attempt from its start to the moment when nothing of it is alive."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.detectors.failure.falls import ended_by_stop
from guardrun.supervisor.engine.incidents.sentences import say_snapshot
from guardrun.supervisor.engine.membership.formation import launch
from guardrun.supervisor.engine.membership.node_failure import lost_meanwhile
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.derived_events import AttemptReplaced
from guardrun.supervisor.engine.model.lost_time import OTHER, STARTING, STOPPING
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.progress import note_exit
from guardrun.supervisor.engine.recovery import (
    data_replay,
    held_memory,
    in_time_save,
    operator_restart,
    preemption,
    requeue,
    resumption,
)
from guardrun.supervisor.engine.recovery.decide import announce, end_order, observe
from guardrun.supervisor.engine.recovery.graceful_leave import ending, leave, may_leave
from guardrun.supervisor.engine.recovery.launcher_orders import choose
from guardrun.supervisor.engine.recovery.recovered import on_good_end
from guardrun.supervisor.engine.recovery.run_summary import finish, record_attempt, stop_words
from guardrun.supervisor.engine.state import hand_changes
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import Attempt, RankState, State, attempt_of, book_end, enter

CHOICE_TRIES = 3


def on_checkpoint_chosen(state: State, event: ev.CheckpointChosen, now_s: float) -> list[Action]:
    """Start the next attempt from it, or give up where no answer or no safe way to resume was found.

    An answer to an older question is ignored. An error is asked again, CHOICE_TRIES times in all.
    """
    if event.choice != state.choice:
        return []
    if event.error:
        if state.choice_tries < CHOICE_TRIES:
            return choose(state, now_s)
        # Starting anew where there may be checkpoints would overwrite them: that is not ours to decide.
        return finish(state, "gave_up", 1, f"no checkpoint could be chosen: {event.error}", now_s)
    state.checkpoint = event.checkpoint
    resumption.on_chosen(state, event)
    if event.checkpoint is not None:
        state.saved_step = max(state.saved_step, event.checkpoint.step)
    actions: list[Action] = [announce(*say_snapshot(event.snapshot))] if event.snapshot is not None else []
    actions += [
        announce(f"{word} checkpoint {s.path}: {s.reason}", level="warn")
        for word, found in (("skipped", event.skipped), ("beware of", event.warnings))
        for s in found[:3]
    ]
    if event.keep_trouble:
        actions.append(announce(event.keep_trouble, level="warn"))
    if reason := resumption.why_not(state):
        return actions + resumption.give_up(state, reason, now_s)
    state.mending_incident = state.resuming_incident
    if state.resuming_incident:
        evidence = state.incidents[state.resuming_incident].evidence
        if event.skipped:
            skipped = [{"path": s.path, "reason": s.reason} for s in event.skipped]
            evidence = {**evidence, "skipped_checkpoints": skipped}
        if event.snapshot is not None:
            told = {key: value for key, value in msgspec.to_builtins(event.snapshot).items() if value}
            evidence = {**evidence, "snapshot": told}
        actions.append(change(state, state.resuming_incident, resumed_from=event.checkpoint, evidence=evidence))
        state.resuming_incident = ""
    if state.attempt:
        where = (
            f"resuming from {event.checkpoint.path} (step {event.checkpoint.step})"
            if event.checkpoint
            else "no whole checkpoint, so from the beginning"
        )
        actions.append(announce(f"starting attempt {state.next_attempt}: {where}", level="info"))
    return [*actions, *launch(state, now_s)]


def on_attempt_started(state: State, event: ev.AttemptStarted, now_s: float) -> list[Action]:
    """Ranks are alive: watch them."""
    if event.attempt != state.next_attempt or (state.attempt and state.attempt.number == event.attempt):
        return []
    state.attempt = Attempt(
        number=event.attempt,
        started_s=now_s,
        resumed_from=event.resumed_from,
        is_guarded=state.is_guarded,
        ranks={r.global_rank: RankState(rank=r) for r in event.ranks},
        alive=len(event.ranks),
    )
    state.restart_by = ""
    state.is_restart = False
    told = [*held_memory.report_memory(state, event.memory), *_say_undone(state, event)]
    if event.resumed_from is not None:
        told += data_replay.why_not_here(state)
    if state.signum:
        enter(state, Phase.ENDING)
        return told
    enter(state, Phase.RUNNING)
    return [*told, *lost_meanwhile(state, now_s)]


def _say_undone(state: State, event: ev.AttemptStarted) -> list[Action]:
    """Of what people have changed in attempts before."""
    if not state.by_hand:
        return []
    step = event.resumed_from.step if event.resumed_from is not None else None
    state.by_hand, words = hand_changes.begin_attempt(state.by_hand, event.attempt, step)
    return [announce(words, level="warn")] if words else []


def on_attempt_not_started(state: State, event: ev.AttemptNotStarted, now_s: float) -> list[Action]:
    """The machine refused (no memory, no ports, no interpreter): the same again would be refused again."""
    if event.attempt != state.next_attempt:
        return []
    said = announce(f"attempt {event.attempt} could not be started: {event.error}", level="bad")
    if state.notice.cause:  # which may be why: a signal does not let the launcher wait for its start any longer
        return [said, *preemption.wind_up(state, now_s)]
    return [said, *finish(state, "failed", 1, f"could not start the ranks: {event.error}", now_s)]


def on_attempt_restarted(state: State, event: ev.AttemptStarted, now_s: float) -> list[Action]:
    """torchrun's own agent started its workers anew: the old attempt is over, whatever was being found out about it."""
    old = attempt_of(state)
    if event.attempt <= old.number:
        return []
    actions = observe(state, AttemptReplaced(), now_s)
    outcome = "restarted"
    if state.verdict_incident:
        actions.append(change(state, state.verdict_incident, action="restart"))
        outcome, old.incident_id = state.incidents[state.verdict_incident].cause, state.verdict_incident
        state.verdict_incident = ""
    old.ended_s = now_s
    record_attempt(state, outcome)
    state.restarts += 1
    state.ledger.switch(STARTING, now_s)
    state.next_attempt = event.attempt
    return actions + on_attempt_started(state, event, now_s)


def on_attempt_stopped(state: State, event: ev.AttemptStopped, now_s: float) -> list[Action]:
    """Nothing of the attempt is alive: end the run, or begin anew, where that is why it ended.

    Else it goes by what detectors say: exits are read to find the cause, and the restart is decided once it is told.
    """
    attempt = attempt_of(state)
    if event.attempt != attempt.number:
        return []
    for number, code in event.exitcodes.items():
        rank = attempt.ranks.get(number)
        if rank is not None and rank.exitcode is None:
            note_exit(attempt, rank, code, now_s)
    attempt.alive = 0
    attempt.stopped, attempt.collecting = {}, {}
    actions = in_time_save.give_up(state, "the ranks have ended") if attempt.in_time is not None else []
    attempt.ended_s = now_s
    if event.survivors:
        actions.append(announce(f"processes {event.survivors} could not be ended, not even by SIGKILL", level="warn"))
    if preemption.has_ended(state):
        return actions + preemption.wind_up(state, now_s)
    if state.signum:
        return actions + finish(state, "interrupted", 128 + state.signum, stop_words(state), now_s)
    if state.phase is Phase.RUNNING:
        enter(state, Phase.STOPPING)
        book_end(state, STOPPING, now_s)
    if not state.is_crashing and all(_ended_well(state, r) for r in attempt.ranks.values()):
        actions += on_good_end(state, now_s)
        return actions + finish(state, "finished", 0, "training ended well", now_s)
    if attempt.is_refused:
        return actions + resumption.on_stopped(state, now_s)
    if operator_restart.is_due(state):
        return actions + operator_restart.begin_next_attempt(state, now_s)
    return actions


def _ended_well(state: State, rank: RankState) -> bool:
    """Whether a rank's script came to its end; its process may have lingered until it was stopped.

    One that was stopped before may end with 0 as well: by a handler that saves, say.
    """
    began_s = attempt_of(state).stop_began_s
    if rank.exitcode == 0 and (not began_s or rank.exited_s <= began_s):
        return True
    if attempt_of(state).is_cut:
        return False
    return rank.has_ended and rank.error is None and (rank.exitcode == 0 or ended_by_stop(state, rank))


def on_stop_requested(state: State, event: ev.StopRequested, now_s: float) -> list[Action]:
    """The launcher is already stopping the ranks; wait for it to say that nothing is left."""
    if may_leave(state, event.node):
        return leave(state, event, now_s)
    if state.phase is Phase.ENDING:
        return requeue.on_stop(state, event, now_s)
    state.signum, state.signalled = event.signum, event.node
    book_end(state, OTHER, now_s)
    actions = ending(state)
    if state.attempt is None or state.attempt.ended_s is not None:
        return actions + finish(state, "interrupted", 128 + event.signum, stop_words(state), now_s)
    enter(state, Phase.ENDING)
    if state.fleet is None:
        return []
    # One node was told: its launcher stops its own ranks, and nobody else's.
    return [*actions, end_order(state)]
