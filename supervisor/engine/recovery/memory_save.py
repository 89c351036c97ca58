"""A save before memory runs out, and a restart from it (`[guards] memory = "save"`).

RunsOut …      the finding says when, anew in each window
      → near: AskCheckpoint → CheckpointCompleted, or the deadline, which is told once
      → StopAttempt → … the next attempt, as after any incident (restart_policy.py)

A save that the script makes by itself shortly before is used as well: CheckpointSaved → AskCheckpoint(is_quiet). Where
no restart may follow, the ranks are asked all the same: a crash then costs less. What is asked ends with the finding
(it heals) and with the attempt (a crash, a hang, a notice that the job ends, whose own request takes its place).
recovery/voluntary/memory.py says when, and what speaks against it.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.detectors.growing import range_words
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, AskCheckpoint
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.decide import announce, cut_for
from guardrun.supervisor.engine.recovery.voluntary import memory
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import State, attempt_of, next_request

MOST_TRIES = 3
"""Requests to the ranks, of a finding."""
WAITS = 0.9
"""Share of the time that is left, and of what a save may take, for which one is looked out for."""
LOOK_S = 60.0
"""So long it is looked whether a save that was seen is whole."""
SAID = "memory_save"
"""Of State.notes."""


def due_s(state: State) -> float | None:
    """When the ranks are to be asked, or what was asked is looked out for no longer."""
    settings = state.settings
    if not settings.saves_before_oom or not settings.act or state.phase is not Phase.RUNNING or state.notice.cause:
        return None
    save = attempt_of(state).memory_save
    if save.request:
        return save.until_s
    key = save.nearest()
    return max(memory.ask_s(state, key), save.retry_s) if key else None


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    at_s = due_s(state)
    if at_s is None or now_s < at_s:
        return []
    save = attempt_of(state).memory_save
    if save.request and save.is_quiet:
        save.put_off(0.0)
        return []
    if save.request:
        return _expire(state, now_s)
    key = save.nearest()
    if memory.why_not_now(state, key, now_s):
        save.put_off(_later_s(state, now_s))
        return []
    left_s = tuple(max(0.0, at_s - now_s) for at_s in save.outlooks[key])
    incident = state.incidents[state.detected[key]]
    text = f"incident {incident.id}: memory runs out in {range_words(*left_s)}: the ranks are asked to save"
    until_s = now_s + WAITS * max(memory.lead_s(state), save.outlooks[key][1] - now_s)
    return [announce(text, "warn"), _ask(state, key, since_s=now_s, until_s=until_s, is_quiet=False)]


def on_saved(state: State, event: ev.CheckpointSaved, now_s: float) -> list[Action]:
    """In RUNNING: a rank has saved, by itself or because it was asked."""
    save = attempt_of(state).memory_save
    if event.attempt != attempt_of(state).number:
        return []
    state.save_times.add(event, now_s)
    key = save.nearest()
    if due_s(state) is None or save.request or not key or not memory.is_last_save(state, key, now_s):
        return []
    if memory.why_not_now(state, key, now_s) or memory.why_not(state, event.step):
        return []
    since_s, until_s = max(0.0, now_s - event.duration_s), now_s + LOOK_S + event.duration_s
    return [_ask(state, key, since_s=since_s, until_s=until_s, is_quiet=True)]


def on_checkpoint_completed(state: State, event: ev.CheckpointCompleted, now_s: float) -> list[Action]:
    """A whole checkpoint newer than the request: the cheapest moment for a restart."""
    checkpoint = event.checkpoint
    if due_s(state) is None or checkpoint is None:
        return []
    save = attempt_of(state).memory_save
    if not save.request or event.request != save.request:
        return []
    key, took_s, is_quiet = save.key, now_s - save.asked_s, save.is_quiet
    save.put_off(0.0)
    if memory.why_not_now(state, key, now_s):
        save.retry_s = _later_s(state, now_s)
        save.tries += 0 if is_quiet else 1
        if save.tries >= MOST_TRIES:
            save.done.append(key)
        return []
    saved = {"path": checkpoint.path, "step": checkpoint.step, "asked": not is_quiet, "took_s": round(took_s, 1)}
    incident_id = state.detected[key]
    there = f"checkpoint {checkpoint.path} (step {checkpoint.step}) is whole"
    if why := memory.why_not(state, checkpoint.step):
        save.done.append(key)
        said = announce(f"incident {incident_id}: {there}; no restart from it: {why}", "warn")
        return [_add_evidence(state, incident_id, saved=saved, not_restarted=why), said]
    state.memory_restarts += 1
    state.open_incidents.append(incident_id)  # until training is past it
    told = _add_evidence(state, incident_id, acted_s=now_s, saved=saved)
    said = announce(f"incident {incident_id}: {there}: restarting from it before memory runs out", "warn")
    return [told, said, *cut_for(state, incident_id, onset_s=now_s, now_s=now_s)]


def order_again(state: State) -> list[Action]:
    """A new supervisor knows of no request."""
    is_asked = due_s(state) is not None and attempt_of(state).memory_save.request
    return [_order(state)] if is_asked else []


def on_time_skipped(state: State, gap_s: float, now_s: float) -> None:
    """Whatever was asked is asked again: nobody knows whether it was heard."""
    attempt_of(state).memory_save.skip(gap_s, _later_s(state, now_s))


def _ask(state: State, key: str, *, since_s: float, until_s: float, is_quiet: bool) -> Action:
    save = attempt_of(state).memory_save
    save.key, save.request, save.is_quiet = key, next_request(state), is_quiet
    save.asked_s, save.until_s = since_s, until_s
    return _order(state)


def _order(state: State) -> Action:
    save = attempt_of(state).memory_save
    return AskCheckpoint(
        request=save.request,
        since_s=save.asked_s,
        is_quiet=save.is_quiet,
        attempt=attempt_of(state).number,
        until_s=save.until_s,
    )


def _expire(state: State, now_s: float) -> list[Action]:
    """Nobody has saved: nothing is restarted, and nothing more asked for this."""
    save = attempt_of(state).memory_save
    key, waited_s = save.key, now_s - save.asked_s
    save.done.append(key)
    save.put_off(0.0)
    incident_id = state.detected[key]
    why = f"no whole checkpoint within {waited_s:.0f} s of asking"
    actions = [_add_evidence(state, incident_id, not_saved=why)]
    if SAID not in state.notes:
        state.notes.append(SAID)
        text = f"incident {incident_id}: {why}: nothing is restarted (hooks.should_checkpoint() would be asked)"
        actions.append(announce(text, "warn"))
    return actions


def _later_s(state: State, now_s: float) -> float:
    return now_s + state.settings.memory_window_s


def _add_evidence(state: State, incident_id: str, *, acted_s: float | None = None, **more: Any) -> Action:
    evidence = {**state.incidents[incident_id].evidence, **more}
    changes = {} if acted_s is None else {"acted_s": acted_s}
    return change(state, incident_id, evidence=evidence, **changes)
