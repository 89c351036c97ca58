"""What is asked of the launcher and the chooser, and asked again where no answer comes."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action, ChooseCheckpoint, StartAttempt
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.decide import announce, stop_order
from guardrun.supervisor.engine.recovery.voluntary import in_time, rollback
from guardrun.supervisor.engine.state.state import State, enter

ANSWER_S = 30.0
"""An order that nobody answered for this long is given again."""


def choose(state: State, now_s: float) -> list[Action]:
    """Have the checkpoint for the next attempt chosen."""
    if state.phase is not Phase.CHOOSING:
        state.choice_tries = 0
    enter(state, Phase.CHOOSING)
    state.choice += 1
    state.choice_tries += 1
    state.ordered_s = now_s
    if state.attempt is not None and state.attempt.poisoned is not None:
        state.spoiled = rollback.spoiled_until(state, now_s)
        state.attempt.poisoned = None
    if state.attempt is not None and state.attempt.in_time is not None:
        state.spoiled += in_time.spoiled(state.attempt, now_s, is_many=state.fleet is not None)
    return [_order(state)]


def _order(state: State) -> ChooseCheckpoint:
    return ChooseCheckpoint(choice=state.choice, avoid=list(state.avoid), spoiled=list(state.spoiled))


def start(state: State, now_s: float) -> Action:
    """Start the next attempt, as it was decided; the same again where nobody answered."""
    enter(state, Phase.STARTING)
    state.ordered_s = now_s
    return StartAttempt(
        attempt=state.next_attempt,
        checkpoint=state.checkpoint,
        is_detailed=state.is_detailed,
        siblings=list(state.siblings) if state.checkpoint is not None else [],
        is_guarded=state.is_guarded,
        nodes=list(state.fleet.placed) if state.fleet is not None else [],
        skips=[one for one in state.skip_orders if state.checkpoint is None or state.checkpoint.step < one.step],
        is_cold=state.is_warm_bad,
    )


def due_s(state: State) -> float | None:
    """When an order without an answer is given again."""
    if state.phase in (Phase.STARTING, Phase.CHOOSING):
        return state.ordered_s + ANSWER_S
    if state.phase is Phase.STOPPING and state.attempt and state.attempt.ended_s is None:
        if state.attempt.in_time is not None and state.attempt.in_time.is_pending:
            return None  # nothing has been ordered yet: in_time_save.py keeps the time
        return state.ordered_s + state.settings.stop_grace_s + ANSWER_S
    # While the user's signal ends the ranks (ENDING), and while what well-ended ranks have left behind is cleared up,
    # it is the launcher that keeps the time.
    return None


def order_again(state: State, now_s: float) -> list[Action]:
    """Repeat the order that is outstanding; all of them are idempotent."""
    state.ordered_s = now_s
    if state.phase is Phase.STARTING:
        return [start(state, now_s)]
    if state.phase is Phase.STOPPING:
        return [stop_order(state)]
    if state.phase is Phase.CHOOSING:
        return [_order(state)]  # the same: a slow answer counts
    return []


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    at_s = due_s(state)
    if at_s is None or now_s < at_s:
        return []
    actions = order_again(state, now_s)
    note = f"choice {state.choice}"
    if state.phase is Phase.CHOOSING and note not in state.notes:
        state.notes.append(note)
        text = f"the folders of checkpoints have not answered for {ANSWER_S:.0f} s: the restart waits for them"
        actions.append(announce(text, "warn"))
    return actions
