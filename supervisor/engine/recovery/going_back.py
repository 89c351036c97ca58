"""A rollback, once it is known what there is to go back to (`[guards] numeric = "rollback"`).

Poisoned   → ChooseCheckpoint(is_look)           the ranks train on
           → CheckpointChosen, or no answer      there is none: training goes on, and it is said why
           → StopAttempt → … the next attempt, as after any incident (restart_policy.py)

Ended is it without a moment for a handler of SIGTERM: what that would save is spoilt, and it may write over the very
checkpoint that is to be gone back to. recovery/voluntary/rollback.py says what speaks against it, and is asked again
once the answer is there.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Poisoned
from guardrun.supervisor.engine.recovery.decide import announce, cut_for, not_rolled_back, roll_back
from guardrun.supervisor.engine.recovery.voluntary import batch_skips, rollback
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import State, attempt_of

NONE_LEFT = "no whole checkpoint from before is there"
UNANSWERED = "the folders of checkpoints do not answer"


def due_s(state: State) -> float | None:
    """When what there is has been looked for long enough."""
    if state.phase is not Phase.RUNNING:
        return None
    going_back = attempt_of(state).going_back
    return going_back.until_s if going_back is not None else None


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    at_s, going_back = due_s(state), state.attempt.going_back if state.attempt is not None else None
    if at_s is None or now_s < at_s or going_back is None:
        return []
    attempt_of(state).going_back = None
    return _stay(state, going_back.verdict, UNANSWERED, now_s)


def on_looked(state: State, event: ev.CheckpointChosen, now_s: float) -> list[Action]:
    """In RUNNING: what there is to go back to."""
    attempt = attempt_of(state)
    going_back = attempt.going_back
    if going_back is None or event.choice != going_back.choice:
        return []
    attempt.going_back = None
    why = rollback.why_not(state, going_back.verdict)  # a rank may have ended meanwhile
    if not why and event.checkpoint is None:
        why = f"{NONE_LEFT} ({event.error})" if event.error else NONE_LEFT
    verdict = going_back.verdict
    return _stay(state, verdict, why, now_s) if why else _go(state, verdict, now_s)


def _stay(state: State, verdict: Poisoned, why: str, now_s: float) -> list[Action]:
    """Say why; what has become NaN meanwhile, after a leap, has more to go back to."""
    actions, later = not_rolled_back(state, verdict, why), attempt_of(state).poisoned
    return actions + (roll_back(state, later, now_s) if later is not None and later.key != verdict.key else [])


def _go(state: State, verdict: Poisoned, now_s: float) -> list[Action]:
    """End the attempt, and say what is left out by the next one."""
    incident_id = state.detected[verdict.key]
    evidence = dict(state.incidents[incident_id].evidence)
    evidence.pop("not_rolled_back", None)  # it was put off
    rollback.note(state, verdict)
    attempt_of(state).is_worthless = True
    state.open_incidents.append(incident_id)  # until training is past it
    text = f"incident {incident_id}: back to a checkpoint from before step {verdict.step}"
    orders, why = batch_skips.plan(verdict, attempt_of(state).ranks, incident_id, state.skip_orders)
    state.skip_orders += orders
    if why:
        evidence["batches_not_left_out"] = why
        text += f"; its batches are not left out: {why}"
    else:
        asked = {rank: [b for order in orders for b in order.ranks[rank].batches] for rank in orders[0].ranks}
        evidence["batches_to_leave_out"] = batch_skips.show(asked)
        text += ", without the batches of it"
    actions: list[Action] = [
        change(state, incident_id, acted_s=now_s, evidence={**evidence, "rolled_back": True}),
        announce(text, "warn"),
    ]
    return actions + cut_for(state, incident_id, onset_s=verdict.since_s, now_s=now_s)


def on_released(state: State, now_s: float) -> list[Action]:
    """The run is no longer held: what is NaN still is as lost as it was."""
    attempt = state.attempt
    if state.phase is not Phase.RUNNING or attempt is None or attempt.poisoned is None:
        return []
    return roll_back(state, attempt.poisoned, now_s)


def order_again(state: State, now_s: float) -> list[Action]:
    """A new supervisor knows of no question."""
    return [rollback.look_again(state, now_s)] if due_s(state) is not None else []


def on_time_skipped(state: State, gap_s: float) -> None:
    """Nobody could answer meanwhile."""
    attempt = attempt_of(state)
    if attempt.going_back is not None:
        until_s = attempt.going_back.until_s + gap_s
        attempt.going_back = msgspec.structs.replace(attempt.going_back, until_s=until_s)
