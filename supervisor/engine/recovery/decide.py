"""What follows from verdicts. Here alone incidents are opened, words said, attempts stopped and nodes isolated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import (
    Action,
    Culprit,
    Incident,
    Isolate,
    Note,
    ReadExits,
    Say,
    StopAttempt,
    TakeLook,
)
from guardrun.supervisor.engine.model.lost_time import DETECTING, OTHER, STOPPING
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import (
    Changed,
    Detected,
    Diverged,
    ExceptionsCaught,
    ExitsWanted,
    LookWanted,
    Over,
    Poisoned,
    Remark,
    RunsOut,
    StopWanted,
    Verdict,
)
from guardrun.supervisor.engine.observation import far_behind
from guardrun.supervisor.engine.observation.hang_finding import LookJudged
from guardrun.supervisor.engine.recovery.voluntary import in_time, refusals, rollback
from guardrun.supervisor.engine.state import hand_changes
from guardrun.supervisor.engine.state.hand_changes import HandChange
from guardrun.supervisor.engine.state.incidents import change, culprits_of, told_again, write
from guardrun.supervisor.engine.state.state import State, attempt_of, enter, without_stall
from guardrun.supervisor.health.base.findings import Response

MAX_AVOIDED = 50
BY_HAND, BY_HAND_HINT = "changed_by_hand", "changed_by_hand_said"
"""In an incident's evidence: what people have changed before, and the sentence that names the last of it."""


def observe(state: State, event: object, now_s: float) -> list[Action]:
    """Have the detectors take in an event, or what was derived from one, and act on what they say."""
    actions: list[Action] = []
    for detector in state.detectors.observers(type(event)):
        if verdicts := detector.observe(event, state, now_s):
            actions += decide(state, verdicts, now_s)
    if isinstance(event, ev.NodeReport) and state.phase is Phase.RUNNING and state.attempt is not None:
        number, step, window_s = state.attempt.number, state.attempt.step, state.settings.window_s
        is_small = len(state.attempt.ranks) <= far_behind.MAX_RANKS
        for times in (state.step_times, state.brief_times) if is_small else (state.step_times,):
            if now_s < state.attempt.examined_to_s:
                times.pass_over(event, number, step, window_s, now_s)
            elif (window := times.observe(event, number, step, window_s, now_s)) is not None:
                actions += observe(state, window, now_s)
    return actions


def decide(state: State, verdicts: Sequence[Verdict | LookJudged], now_s: float) -> list[Action]:
    """Act on verdicts, in order."""
    actions: list[Action] = []
    for verdict in verdicts:
        if isinstance(verdict, Detected):
            actions += report(state, verdict, now_s)[1]
        elif isinstance(verdict, Changed):
            actions += _change(state, verdict, now_s)
        elif isinstance(verdict, Over):
            actions += _close(state, verdict, now_s)
        elif isinstance(verdict, Remark):
            actions += _remark(state, verdict, now_s)
        elif isinstance(verdict, LookWanted):
            actions.append(TakeLook(look=verdict.look, attempt=verdict.attempt, reason=verdict.reason))
        elif isinstance(verdict, LookJudged):
            actions += observe(state, verdict, now_s)
        elif isinstance(verdict, ExitsWanted):
            actions.append(ReadExits(attempt=verdict.attempt))
        elif isinstance(verdict, ExceptionsCaught):
            for number in verdict.global_ranks:
                attempt_of(state).ranks[number].error = None
        elif isinstance(verdict, Poisoned):
            actions += roll_back(state, verdict, now_s)
        elif isinstance(verdict, Diverged):
            actions += _stop_diverged(state, verdict, now_s)
        elif isinstance(verdict, RunsOut):
            attempt_of(state).memory_save.note(verdict)  # recovery/memory_save.py acts once it is near
        elif isinstance(verdict, StopWanted):
            actions += stop(state, verdict.since_s, now_s, is_well=True)
        else:
            actions += stop(state, now_s, now_s)
    return actions


def _remark(state: State, verdict: Remark, now_s: float) -> list[Action]:
    """Say it; what is a note is kept, and said once a run."""
    topic = verdict.topic
    if not topic:
        return [announce(verdict.text, verdict.level)]
    if topic in state.remarks:
        return []
    attempt, evidence = attempt_of(state), dict(verdict.evidence)
    state.remarks[topic] = note = Note(
        topic=topic,
        text=verdict.text,
        advice=advice_for(topic, evidence),
        evidence=evidence,
        attempt=attempt.number,
        step=attempt.step if attempt.has_progress else None,
        at_s=now_s,
    )
    return [announce(f"note: {note.text} {note.advice}", verdict.level)]


def announce(text: str, level: str = "info") -> Say:
    """A line for the terminal. level: as Say has it."""
    return Say(text=text, level=level)


# Incidents -------------------------------------------------------------------------------------------------------


def report(state: State, found: Detected, now_s: float) -> tuple[Incident, list[Action]]:
    """Open an incident, say so, and do about it what the verdict asks for. Returns it as it was opened."""
    incident = _open(state, found, now_s)
    state.is_detail_bad = state.is_detail_bad or found.is_uneven
    avoid(state, found.avoid)
    if not found.ends_with_progress:
        state.open_incidents.remove(incident.id)
    if found.key:
        state.detected[found.key] = incident.id
    sentences = f"{incident.summary} {found.hint}" if found.hint else incident.summary
    said = announce(f"incident {incident.id}: {sentences}", found.level)
    actions: list[Action] = [said, write(state, incident.id, is_new=True)]
    if found.node:
        evidence_s = now_s if found.evidence_s is None else found.evidence_s
        actions += _isolate_for(state, found.node, incident, evidence_s, found.finding)
    if found.exit_code is not None:
        state.verdict_incident, state.exit_code = incident.id, found.exit_code
    if found.stops_since_s is not None:
        is_well = found.kind == "hang"
        actions += stop_for(state, incident.id, onset_s=found.stops_since_s, now_s=now_s, is_well=is_well)
    elif found.kind == "hang" and found.ends_with_progress:
        state.ledger.reclassify(DETECTING, found.onset_s, now_s)
        state.ledger.switch(OTHER, now_s)  # until training gets further
    return incident, actions


def _open(state: State, found: Detected, now_s: float) -> Incident:
    """Number and remember it."""
    attempt, evidence = state.attempt, dict(found.evidence)
    step = found.step
    if step is None and attempt is not None and found.attempt is None:
        step = attempt.step if attempt.has_progress or attempt.resumed_from else None
    incident = Incident(
        id=f"{state.next_incident:03d}",
        attempt=found.attempt if found.attempt is not None else attempt_of(state).number,
        kind=found.kind,
        cause=found.cause,
        confidence=found.confidence,
        summary=found.summary,
        culprits=_culprits(state, found.culprits),
        onset_s=found.onset_s,
        detected_s=now_s if found.told_s is None else found.told_s,
        step=step,
        evidence=evidence,
        advice=found.advice or advice_for(found.cause, evidence),
        action=found.action,
        acted_s=found.acted_s,
        looks=list(found.looks),
    )
    incident = told_again(_with_hand_changes(state, incident), list(state.incidents.values()), state.past)
    state.next_incident += 1
    state.incidents[incident.id] = incident
    state.open_incidents.append(incident.id)
    return incident


def _with_hand_changes(state: State, incident: Incident) -> Incident:
    """What people have changed before belongs to what is known of it; of what numbers do, to the sentence, too."""
    if not state.by_hand:
        return incident
    resumed = state.attempt.resumed_from if state.attempt is not None else None
    known = [each for each in state.by_hand if each.at_s <= incident.detected_s]
    changes = hand_changes.before(known, incident.attempt, resumed.step if resumed is not None else None)
    if not changes:
        return incident
    evidence = {**incident.evidence, BY_HAND: hand_changes.evidence(changes, incident.detected_s)}
    hint = hand_changes.hint(changes, incident.step) if incident.kind == "numeric" else ""
    if hint:
        evidence[BY_HAND_HINT] = hint
    return msgspec.structs.replace(incident, evidence=evidence, summary=f"{incident.summary} {hint}".rstrip())


def renew_hand_changes(state: State, asked: HandChange) -> list[Action]:
    """It is known now what was changed: incidents that were told meanwhile name it."""
    actions = []
    for incident in list(state.incidents.values()):
        if incident.attempt != asked.attempt or incident.detected_s < asked.at_s:
            continue
        before = incident.evidence
        summary = incident.summary.removesuffix(f"; {before.get('recurrence', {}).get('said', '')}.").removesuffix(".")
        bare = f"{summary}.".replace(f" {before[BY_HAND_HINT]}", "") if BY_HAND_HINT in before else f"{summary}."
        renewed = _with_hand_changes(state, msgspec.structs.replace(incident, summary=bare))
        actions.append(change(state, incident.id, summary=renewed.summary, evidence=renewed.evidence))
    return actions


def _culprits(state: State, named: Sequence[int | Culprit]) -> list[Culprit]:
    devices = state.detectors.node_health.devices
    found: list[Culprit] = []
    for one in named:
        found += [one] if isinstance(one, Culprit) else culprits_of(attempt_of(state), [one], devices)
    return found


def _change(state: State, verdict: Changed, now_s: float) -> list[Action]:
    incident_id = state.detected[verdict.key]
    state.is_detail_bad = state.is_detail_bad or verdict.is_uneven
    avoid(state, verdict.avoid)
    before = state.incidents[incident_id].evidence
    by_hand = {name: before[name] for name in (BY_HAND, BY_HAND_HINT) if name in before}
    changes: dict[str, Any] = {"evidence": {**verdict.evidence, **by_hand}}
    for name in ("summary", "action", "acted_s", "cause", "confidence"):
        if value := getattr(verdict, name):
            changes[name] = value
    if verdict.summary:
        changes["summary"] = f"{verdict.summary} {by_hand.get(BY_HAND_HINT, '')}".rstrip()
    if verdict.cause:
        changes["advice"] = advice_for(verdict.cause, verdict.evidence)
    if verdict.culprits is not None:
        changes["culprits"] = _culprits(state, verdict.culprits)
    if verdict.exit_code is not None:
        state.exit_code = verdict.exit_code
    actions = [change(state, incident_id, **changes)]
    if verdict.level:
        actions.insert(0, announce(f"incident {incident_id}: {state.incidents[incident_id].summary}", verdict.level))
    if verdict.node:
        actions += _isolate_for(state, verdict.node, state.incidents[incident_id], now_s)
    if verdict.stops_since_s is not None:
        is_well = state.incidents[incident_id].kind == "hang"
        actions += stop_for(state, incident_id, onset_s=verdict.stops_since_s, now_s=now_s, is_well=is_well)
    return actions


def _close(state: State, verdict: Over, now_s: float) -> list[Action]:
    incident_id = state.detected[verdict.key]
    if (attempt := state.attempt) is not None:
        attempt.memory_save.forget(verdict.key)
        if attempt.going_back is not None and attempt.going_back.verdict.key == verdict.key:
            attempt.going_back = None
        if attempt.poisoned is not None and attempt.poisoned.key == verdict.key:
            attempt.poisoned = None
    if incident_id in state.open_incidents:
        state.open_incidents.remove(incident_id)
    said = announce(f"incident {incident_id} is over: {verdict.text}", "good")
    return [change(state, incident_id, recovered_s=now_s), said]


def roll_back(state: State, verdict: Poisoned, now_s: float) -> list[Action]:
    """See what there is to go back to (recovery/going_back.py goes on from there); else say why not."""
    attempt = attempt_of(state)
    if not state.settings.rolls_back:
        return []
    if verdict.bad_step is not None:  # no more of it is a number, whatever is done
        attempt.poisoned = verdict
    if attempt.going_back is not None:
        return []
    if why := rollback.why_not(state, verdict):
        return not_rolled_back(state, verdict, why)
    return [rollback.look(state, verdict, now_s)]


def not_rolled_back(state: State, verdict: Poisoned, why: str) -> list[Action]:
    """Say why training goes on as it is."""
    incident_id = state.detected[verdict.key]
    evidence = {**state.incidents[incident_id].evidence, "not_rolled_back": why}
    return [
        change(state, incident_id, evidence=evidence),
        announce(f"incident {incident_id}: no rollback: {why}", "warn"),
    ]


def _stop_diverged(state: State, verdict: Diverged, now_s: float) -> list[Action]:
    """End the run where the user wants that; restart_policy.py gives up."""
    if not state.settings.stops_diverged:
        return []
    incident_id = state.detected[verdict.key]
    if why := refusals.why_not_acted(state) or refusals.why_not_now(state):
        evidence = {**state.incidents[incident_id].evidence, "not_stopped": why}
        said = announce(f"incident {incident_id}: the run is not stopped: {why}", "warn")
        return [change(state, incident_id, evidence=evidence), said]
    told = change(state, incident_id, acted_s=now_s)
    return [told, *stop_for(state, incident_id, onset_s=now_s, now_s=now_s)]


def avoid(state: State, path: str) -> None:
    """Keep a checkpoint from being chosen again; the last that could not be loaded, last."""
    if path:
        state.avoid = [*(known for known in state.avoid if known != path), path][-MAX_AVOIDED:]


# Nodes -----------------------------------------------------------------------------------------------------------


def _isolate_for(state: State, node: str, incident: Incident, evidence_s: float, finding: str = "") -> list[Action]:
    """Keep the node from what comes, where the incident says so, or the user has for its cause."""
    actions: list[Action] = []
    if incident.action != "isolate_node":
        is_wanted = state.settings.responses.get(incident.cause) == Response.ISOLATE.value
        if not is_wanted or not state.may_act or node in state.nodes.isolated:
            return []
        actions.append(change(state, incident.id, action="isolate_node"))
    state.nodes.isolated[node] = incident.id
    isolated = isolate(state, node, incident.id, evidence_s=evidence_s, finding=finding)
    then = "training goes on, and" if state.phase is Phase.RUNNING else "training"
    said = announce(f"{node} is put under quarantine: {then} is not started again there", "warn")
    return [*actions, isolated, said]


def isolate(
    state: State, node: str, incident_id: str, *, evidence_s: float | None = None, finding: str = ""
) -> Isolate:
    """Have a node kept out of what comes, for what an incident says. evidence_s: None: when that was told."""
    told = state.incidents[incident_id]
    return Isolate(
        node=node,
        incident=told.id,
        cause=told.cause,
        summary=told.summary,
        evidence_s=told.detected_s if evidence_s is None else evidence_s,
        finding=finding,
    )


# The attempt -----------------------------------------------------------------------------------------------------


def cut_for(state: State, incident_id: str, *, onset_s: float, now_s: float) -> list[Action]:
    """End an attempt that would train on, for the next one to go on in its place."""
    attempt_of(state).is_cut = True
    return stop_for(state, incident_id, onset_s=onset_s, now_s=now_s)


def stop_for(state: State, incident_id: str, *, onset_s: float, now_s: float, is_well: bool = False) -> list[Action]:
    """Stop the attempt because of an incident that has been told. is_well: as stop has it."""
    state.verdict_incident = incident_id
    state.exit_code = 1
    return stop(state, onset_s, now_s, is_well=is_well)


def stop(state: State, onset_s: float, now_s: float, *, is_well: bool = False) -> list[Action]:
    """Have the attempt stopped. onset_s: when the trouble began; the time since then is booked as DETECTING.

    is_well: what the other ranks hold is not in doubt, so that one may save it first (in_time_save.py).
    """
    attempt = attempt_of(state)
    if attempt.in_time is not None:
        in_time.call_off(attempt)
    enter(state, Phase.STOPPING)
    state.ledger = without_stall(state, now_s)
    state.ledger.reclassify(DETECTING, max(onset_s, attempt.started_s), now_s)
    state.ledger.switch(STOPPING, now_s)
    begun = in_time.begin(state, now_s) if is_well and attempt.may_save_in_time else ""
    if not isinstance(begun, str):
        return [begun]
    return [*([announce(begun, "warn")] if begun else []), order_stop(state, now_s)]


def order_stop(state: State, now_s: float) -> StopAttempt:
    """Tell the launcher, now: ranks that end from here on may have been ended by it."""
    state.ordered_s = attempt_of(state).stop_began_s = now_s
    return stop_order(state)


def stop_order(state: State) -> StopAttempt:
    """What the launcher is told; the same again where it did not answer."""
    is_last = bool(state.notice.cause or state.signum)
    attempt = attempt_of(state)
    # Whoever has begun anew beside a checkpoint, or trains for nothing, gets no moment in which a handler might save.
    grace_s = 0.0 if attempt.is_refused or attempt.is_worthless else state.settings.stop_grace_s
    return StopAttempt(attempt=attempt.number, grace_s=grace_s, is_last=is_last)


def end_order(state: State) -> StopAttempt:
    """What launchers are told whose ranks a signal ends, that another node's has got."""
    return StopAttempt(attempt=attempt_of(state).number, grace_s=state.settings.stop_grace_s)
