"""After a stop: the next attempt, or the end, and why. All budgets are kept here."""

from __future__ import annotations

from guardrun.supervisor.core.actions import Action, Say
from guardrun.supervisor.core.crash import why_repeated
from guardrun.supervisor.core.endings import finish, record_attempt
from guardrun.supervisor.core.incidents import change
from guardrun.supervisor.core.ledger import STARTING
from guardrun.supervisor.core.orders import choose
from guardrun.supervisor.core.sentences import ADVICE
from guardrun.supervisor.core.state import State, attempt_of


def go_on(state: State, now_s: float) -> list[Action]:
    """Both the cause is told and nothing is alive: restart, or give up."""
    attempt = attempt_of(state)
    if attempt.ended_s is None or not state.verdict_incident:
        return []
    incident = state.incidents[state.verdict_incident]
    reason, poison = _why_not(state)
    attempt.incident_id = incident.id
    record_attempt(state, incident.cause)
    state.verdict_incident = ""
    if reason:
        actions = [change(state, incident.id, action="give_up" if state.settings.act else "none")]
        if poison:
            actions.append(_poison(state, incident.id))
        if state.settings.act:
            actions.append(Say(text=f"giving up: {reason}", level="bad"))
        outcome = "gave_up" if state.settings.act else "failed"
        return actions + finish(state, outcome, state.exit_code or 1, reason, now_s)
    state.restarts += 1
    state.next_attempt = attempt.number + 1
    state.resuming_incident = incident.id
    state.is_detailed = incident.cause == "collective_mismatch"
    state.ledger.switch(STARTING, now_s)
    return [change(state, incident.id, action="restart"), *choose(state, now_s)]


def _why_not(state: State) -> tuple[str, bool]:
    """Why there is no next attempt (empty: there is), and whether it is a poison step. Books progress."""
    attempt, incident = attempt_of(state), state.incidents[state.verdict_incident]
    key = str(incident.evidence.get("key", ""))
    is_same_step = state.last_stop_step == attempt.step
    is_same = bool(key) and key == state.last_error_key and is_same_step
    is_no_further = attempt.number > 0 and bool(state.attempts) and attempt.step <= state.best_step
    if attempt.has_hooks:
        state.no_progress = state.no_progress + 1 if is_no_further else 0
        if not is_no_further or not is_same_step:
            state.same_step = 0
        else:
            state.same_step += 1
    state.last_error_key, state.last_stop_step = key, attempt.step
    if not state.settings.act:
        return "[policy] act = false", False
    if state.settings.is_torchrun_agent:
        return "torchrun's agent has ended", False
    if incident.kind == "crash":
        why = why_repeated(incident.cause, str(incident.evidence.get("error", "")), is_same)
        if why:
            return why, False
    if state.no_progress >= state.settings.max_no_progress > 0:
        is_poison = state.same_step >= state.settings.max_no_progress
        where = f" than step {state.best_step}" if state.best_step else ""
        return f"{state.no_progress} restarts in a row got no further{where}", is_poison
    if state.restarts >= state.settings.max_restarts:
        return _used_up(state.settings.max_restarts), False
    return "", False


def _used_up(max_restarts: int) -> str:
    few = {0: "no restart is allowed (max_restarts is 0)", 1: "the only restart is used up"}
    return few.get(max_restarts, f"all {max_restarts} restarts are used up")


def _poison(state: State, incident_id: str) -> Action:
    """Retell the last stop as what it is: the same step stops the run every time."""
    incident = state.incidents[incident_id]
    evidence = {
        **incident.evidence,
        "own_kind": incident.kind,
        "own_cause": incident.cause,
        "own_summary": incident.summary,
    }
    summary = (
        f"Step {attempt_of(state).step} has stopped the run {state.same_step + 1} times in a row, "
        f"the last time so: {incident.summary}"
    )
    return change(
        state,
        incident_id,
        kind="hang",
        cause="poison_step",
        summary=summary,
        evidence=evidence,
        advice=ADVICE["poison_step"],
    )
