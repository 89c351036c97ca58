"""`guardctl restart`: a person wants this attempt ended, and the next begun from the newest checkpoint.

A stall that stands is looked at once more first, and becomes an incident: evidence goes before the restart. It costs no
budget, and is done whatever guardrun is set to do by itself.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.lost_time import STARTING
from guardrun.supervisor.engine.recovery.decide import announce, stop
from guardrun.supervisor.engine.recovery.launcher_orders import choose
from guardrun.supervisor.engine.recovery.run_summary import record_attempt
from guardrun.supervisor.engine.state.state import State, attempt_of


def on_restart_asked(state: State, event: ev.RestartAsked, now_s: float) -> list[Action]:
    """In RUNNING; elsewhere there is nothing to end."""
    if state.restart_by:
        return []
    state.restart_by = event.who
    actions: list[Action] = [announce(f"restart asked for by {event.who}", level="info")]
    suspicion = state.detectors.hang.suspicion
    if suspicion is None or suspicion.stall is None:
        attempt_of(state).is_cut = True
        return actions + stop(state, now_s, now_s)
    return actions  # the detector of hangs has it looked at, and the attempt ended


def is_due(state: State) -> bool:
    """Whether the attempt that has just ended was ended for this, and for nothing else."""
    is_ours = not state.settings.is_torchrun_agent  # which starts its workers anew by itself
    return bool(state.restart_by) and is_ours and not state.is_failing


def begin_next_attempt(state: State, now_s: float) -> list[Action]:
    """Nothing of it is alive: the next attempt."""
    attempt = attempt_of(state)
    record_attempt(state, "restarted")
    state.restart_by = ""
    state.next_attempt = attempt.number + 1
    state.is_restart = True
    state.is_detailed = False
    state.ledger.switch(STARTING, now_s)
    return choose(state, now_s)
