"""After a stop: the next attempt, or the end, and why. All budgets are kept here."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.failures.root_cause import why_repeated
from guardrun.supervisor.engine.incidents.advice import advice_for, data_words
from guardrun.supervisor.engine.model.actions import Action, Incident
from guardrun.supervisor.engine.model.lost_time import STARTING
from guardrun.supervisor.engine.recovery import eviction, in_time_save
from guardrun.supervisor.engine.recovery.decide import announce, avoid
from guardrun.supervisor.engine.recovery.eviction import evict, is_of_node
from guardrun.supervisor.engine.recovery.launcher_orders import choose
from guardrun.supervisor.engine.recovery.preemption import wind_up
from guardrun.supervisor.engine.recovery.recovered import mark
from guardrun.supervisor.engine.recovery.requeue import may_move, move
from guardrun.supervisor.engine.recovery.run_summary import finish, record_attempt
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import State, attempt_of

MAX_STOPS = 20
REFUSALS = ("exception", "exit_code", "checkpoint_corrupt")
"""By these a script ends that finds not all that it wants to load."""
AT_ONCE_S = 15.0
"""A program that ends with the same code within so long, without a step, is not told apart by trying it again."""
_DATA = ("batch", "epoch", "indices")


def decide_restart(state: State, now_s: float) -> list[Action]:
    """Both the cause is told and nothing is alive: restart, or give up."""
    attempt = attempt_of(state)
    if attempt.ended_s is None or not state.verdict_incident or state.is_crashing:
        return []
    told = in_time_save.add_evidence(state, state.verdict_incident) if attempt.in_time is not None else []
    return told + _decide(state, state.incidents[state.verdict_incident], now_s)


def _decide(state: State, incident: Incident, now_s: float) -> list[Action]:
    attempt = attempt_of(state)
    if state.notice.cause:
        # The job is about to end: nothing is started any more, and what fell meanwhile costs no budget.
        attempt.incident_id, state.verdict_incident = incident.id, ""
        return [change(state, incident.id, action="none"), *wind_up(state, now_s)]
    has_died_of_detail = state.is_detailed and not attempt.has_progress and incident.cause != "collective_mismatch"
    is_asked, state.restart_by = bool(state.restart_by), ""
    fork = {} if is_asked else _find_fork_fault(state, incident)
    has_refused_copy = not fork and _has_refused_copy(state, incident)
    is_excused = has_died_of_detail or bool(fork) or has_refused_copy
    is_free = is_asked or (is_excused and state.settings.act and not state.isolated_by)
    reason, poison = ("", False) if is_free else _why_not(state, incident, _book_stop(state, incident))
    more = eviction.find_incident_changes(state, incident)
    attempt.incident_id = incident.id
    record_attempt(state, incident.cause)
    mark(state, incident)
    state.verdict_incident = ""
    if reason and state.fleet is None and state.node in state.nodes.isolated and may_move(state):
        return [change(state, incident.id, action="isolate_node"), *move(state, reason, now_s)]
    if reason:
        actions = [change(state, incident.id, action="give_up" if state.settings.act else "none", **more)]
        if poison:
            actions.append(_poison(state, incident.id))
        if state.settings.act:
            actions.append(announce(f"giving up: {reason}", level="bad"))
        outcome = "gave_up" if state.settings.act else "failed"
        return actions + finish(state, outcome, state.exit_code or 1, reason, now_s)
    said: list[Action] = []
    if has_died_of_detail:
        state.is_detail_bad = True  # not training's own failure: it costs no budget, and is not tried again
    elif fork:
        state.is_warm_bad = True  # likewise
        more["evidence"] = {**more.get("evidence", incident.evidence), "warm": fork}
        said.append(announce("its ranks were forked, which may be why: from now on all are executed", level="warn"))
    elif has_refused_copy:
        avoid(state, state.copy)  # as if there had been none
        avoid(state, state.kept)  # which is made of it
    elif not is_asked:
        state.restarts += 1
    state.next_attempt = attempt.number + 1
    state.is_restart = True
    state.resuming_incident = incident.id
    state.is_detailed = incident.cause == "collective_mismatch" and not state.is_detailed and not state.is_detail_bad
    state.ledger.switch(STARTING, now_s)
    told = change(state, incident.id, action="restart", **more)
    return [told, *said, *evict(state, incident, now_s), *choose(state, now_s)]


def _has_refused_copy(state: State, incident: Incident) -> bool:
    """Whether the script has ended by itself, before a step, over a copy of a checkpoint (events.SnapshotWritten)."""
    attempt, is_own_end = attempt_of(state), incident.kind == "crash" and incident.cause in REFUSALS
    is_no_further = attempt.resumed_from is not None and attempt.step <= attempt.resumed_from.step
    return bool(state.copy) and is_own_end and is_no_further


def _find_fork_fault(state: State, incident: Incident) -> dict[str, Any]:
    """What speaks for it that an attempt fell because ranks were forked from a warm process; empty: nothing does.

    Either one has said that it could not go on as one, or who is to blame was forked, and has done no step.
    """
    attempt = attempt_of(state)
    forked = [number for number, rank in attempt.ranks.items() if rank.rank.is_forked]
    if not forked or state.is_warm_bad:
        return {}
    refusals = [rank.refusal for rank in attempt.ranks.values() if rank.refusal]
    if refusals:
        return {"forked": forked, "why": refusals[0]}
    if incident.kind not in ("crash", "hang") or is_of_node(state, incident):
        return {}
    begun = attempt.resumed_from.step if attempt.resumed_from is not None else 0
    named = {culprit.rank for culprit in incident.culprits} - {None} or {*attempt.ranks}
    blamed = [attempt.ranks[number] for number in forked if number in named]
    # Where steps are not seen, whatever advances counts.
    is_fresh = any(rank.step <= begun if state.best_step else not rank.progress for rank in blamed)
    return {"forked": forked, "why": "no step was done"} if is_fresh else {}


def _book_stop(state: State, incident: Incident) -> bool:
    """How far the attempt came. Says whether it failed as the last one did, at the same step."""
    attempt = attempt_of(state)
    key = str(incident.evidence.get("key", ""))
    is_same_step = state.last_stop_step == attempt.step
    is_same = bool(key) and key == state.last_error_key and is_same_step
    is_no_further = state.gets_no_further
    # Where the next attempt is on another node, that this one got no further says nothing of the script.
    if attempt.has_hooks and not (is_no_further and is_of_node(state, incident)):
        state.no_progress = state.no_progress + 1 if is_no_further else 0
        if not is_no_further or not is_same_step:
            state.same_step = 0
        else:
            state.same_step += 1
    state.stops = [*(state.stops if is_same_step else []), _stop(attempt.number, attempt.step, incident)][-MAX_STOPS:]
    state.last_error_key, state.last_stop_step = key, attempt.step
    return is_same


def _why_not(state: State, incident: Incident, is_same: bool) -> tuple[str, bool]:
    """Why there is no next attempt (empty: there is), and whether it is a poison step."""
    attempt = attempt_of(state)
    if incident.evidence.get("checkpoint") and not incident.evidence.get("loaded_again"):
        is_same = False  # another checkpoint is taken the next time
    if is_of_node(state, incident):
        is_same = False  # the next attempt goes without it
    if not state.settings.act:
        return "[policy] act = false", False
    if isolated := state.isolated_by:
        return f"{state.node} is quarantined (incident {isolated}: {state.incidents[isolated].cause})", False
    if state.settings.is_torchrun_agent:
        return "torchrun's agent has ended", False
    if incident.cause == "replica_divergence":
        return 'replicas are no longer equal ([guards] divergence = "stop")', False
    if incident.kind == "crash":
        why = why_repeated(incident.cause, str(incident.evidence.get("error", "")), is_same)
        if is_same and incident.cause == "exit_code":
            if _has_ended_at_once(state):
                why = why or "it ended so at once, twice, without a step"
            elif attempt.step:
                why = why or "it ended itself so at the same step twice"
        if why and not eviction.node_to_swap(state, incident):
            return eviction.why_given_up(state, incident, why), False
    used_up = state.used_up(state.no_progress)
    if used_up == "max_no_progress":
        is_poison = state.same_step >= state.settings.max_no_progress and state.sound_step > 0
        where = f" than step {state.sound_step}" if state.sound_step else ""
        return f"{state.no_progress} restarts in a row got no further{where}", is_poison
    return (_used_up(state.settings.max_restarts) if used_up else ""), False


def _has_ended_at_once(state: State) -> bool:
    """Whether this attempt and the one before it were over before they can have done anything."""
    attempt, before = attempt_of(state), state.attempts[-1] if state.attempts else None
    if before is None or before["last_step"] or attempt.step or attempt.ended_s is None:
        return False
    lasted_s = (attempt.ended_s - attempt.started_s, before["ended_s"] - before["started_s"])
    return bool(max(lasted_s) < AT_ONCE_S)


def _stop(attempt: int, step: int, incident: Incident) -> dict[str, Any]:
    """One attempt's end, for the day when the same step has ended several: with the batch, where the rank told it."""
    data = incident.evidence.get("data")
    told = {key: data[key] for key in _DATA if key in data} if isinstance(data, dict) else {}
    return {"attempt": attempt, "step": step, "incident": incident.id, "cause": incident.cause, **told}


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
        "stops": state.stops,
    }
    data = data_words(state.stops[-1]) if state.stops else ""
    at = f" at {data}" if data else ""
    summary = (
        f"Step {attempt_of(state).step} has stopped the run {state.same_step + 1} times in a row, "
        f"the last time{at} so: {incident.summary}"
    )
    return change(
        state,
        incident_id,
        kind="hang",
        cause="poison_step",
        summary=summary,
        evidence=evidence,
        advice=advice_for("poison_step", evidence),
    )
