"""A save by a rank that is well, before the ranks are ended (`hooks.save_with`, `[checkpoint] jit_s`).

a hang, a crash → SaveInTime        the ranks are not told to stop yet (decide.py; voluntary/in_time.py says when)
                → SavedInTime, or the time is over
                → StopAttempt → … the next attempt, as ever

Whatever becomes of it, the ranks are stopped. What a save has written that was not proven is not resumed from.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.engine.recovery.decide import announce, order_stop
from guardrun.supervisor.engine.recovery.requeue import note_saved
from guardrun.supervisor.engine.recovery.voluntary.in_time import NOTHING
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import State, attempt_of

UNCHECKED = "no save before it shows how the script counts steps: from 0, one may be left out"


def due_s(state: State) -> float | None:
    """When the ranks are stopped, saved or not."""
    save = state.attempt.in_time if state.attempt is not None else None
    if save is None or not save.is_pending or state.phase is not Phase.STOPPING:
        return None
    if state.signum:
        return save.since_s  # somebody wants the end now
    # The job is about to end, too: its ranks are left no more time than they have then.
    return min(save.until_s, state.notice.deadline_s) if state.notice.cause else save.until_s


def is_awaited(state: State) -> bool:
    """Whether one has been asked for, and nothing has come of it yet."""
    return state.attempt is not None and state.attempt.in_time is not None and state.attempt.in_time.is_pending


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    at_s = due_s(state)
    if at_s is None or now_s < at_s:
        return []
    return [*_fail(state, late(state)), order_stop(state, now_s)]


def late(state: State) -> str:
    """Why it is not waited for any longer."""
    return f"it was not done within {state.settings.jit_s:g} s"


def on_saved(state: State, event: ev.SavedInTime, now_s: float) -> list[Action]:
    """In STOPPING: what came of it."""
    said = note(state, event)
    return [*said, order_stop(state, now_s)] if said else []


def note(state: State, event: ev.SavedInTime) -> list[Action]:
    """Keep what came of it, and say so; empty: nobody waits for it."""
    save = attempt_of(state).in_time
    if save is None or not save.is_pending or event.request != save.request:
        return []
    checkpoint = event.checkpoint
    if checkpoint is None:
        return _fail(state, event.why, has_begun=event.has_begun)
    save.told = {"rank": event.global_rank, "step": checkpoint.step, "path": checkpoint.path}
    if event.global_ranks:
        save.told["ranks"] = event.global_ranks
    save.told["took_s"] = round(event.took_s, 3)
    note_saved(state, checkpoint.step)
    who = ranks_text(event.global_ranks or [event.global_rank])
    what = "job's end" if save.is_running else "restart"
    text = f"{who} saved step {checkpoint.step} in {event.took_s:.1f} s before the {what}"
    doubt = ""
    if event.is_unchecked:
        save.told["unchecked"], doubt = True, f" ({UNCHECKED})"
    return [announce(f"{text}: {checkpoint.path}{doubt}", "good")]


def give_up(state: State, why: str) -> list[Action]:
    """Nobody waits for it any more; the caller has the ranks stopped, or they have ended, or train on."""
    return _fail(state, why) if is_awaited(state) else []


def on_time_skipped(state: State, gap_s: float) -> None:
    """The rank stood still as well."""
    if state.attempt is not None and state.attempt.in_time is not None:
        state.attempt.in_time.until_s += gap_s


def add_evidence(state: State, incident_id: str) -> list[Action]:
    """What came of it belongs to the incident for which the ranks were ended."""
    save = attempt_of(state).in_time
    if save is None or not save.told:
        return []
    evidence: dict[str, Any] = {**state.incidents[incident_id].evidence, "jit": save.told}
    return [change(state, incident_id, evidence=evidence)]


def _fail(state: State, why: str, *, has_begun: bool = True) -> list[Action]:
    save = attempt_of(state).in_time
    assert save is not None
    save.told, save.is_doubtful = {"why": why}, has_begun
    return [announce(f"{NOTHING}: {why}", "warn")]
