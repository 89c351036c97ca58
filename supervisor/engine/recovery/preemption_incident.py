"""The incident of kind `preemption`, and what it says."""

from __future__ import annotations

import signal
from typing import Any

from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.recovery.decide import report
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.state import TIME_LIMIT, Notice, State, attempt_of


def report_preemption(state: State, now_s: float) -> list[Action]:
    """Open the incident, or bring it up to date. A notice that comes before any attempt leaves none."""
    notice = state.notice
    if state.attempt is None:
        return []
    evidence = evidence_of(state)
    action = "restart" if notice.is_requeued else "none"
    if notice.incident_id:
        advice = advice_for(notice.cause, evidence)
        changes: dict[str, Any] = {
            "evidence": evidence,
            "summary": sentence_of(state),
            "advice": advice,
            "action": action,
        }
        if state.phase is Phase.ENDING and state.attempt.has_progress:
            changes["step"] = state.attempt.step  # where training stopped, and has to get past
        return [change(state, notice.incident_id, **changes)]
    detected = Detected(
        kind="preemption",
        cause=notice.cause,
        confidence=1.0,
        summary=sentence_of(state),
        culprits=[],
        onset_s=notice.began_s,
        evidence=evidence,
        ends_with_progress=True,
        action=action,
    )
    incident, actions = report(state, detected, now_s)
    notice.incident_id = incident.id
    if not attempt_of(state).incident_id:
        attempt_of(state).incident_id = incident.id
    return actions


def evidence_of(state: State) -> dict[str, Any]:
    """The incident's evidence so far; entries that say nothing are left out, `in_time` stays when False."""
    notice = state.notice
    told: dict[str, Any] = {
        "signal": signal.Signals(notice.signum).name if notice.signum else "",
        "scheduler": notice.why,
        "given_s": round(notice.deadline_s - notice.began_s, 1),
        "asked": notice.at_call > 0,
        "answered": notice.is_answered,
        "forwarded": notice.is_forwarded,
        "catchers": notice.catchers,
    }
    if notice.saved is not None:
        told["saved_in_s"] = round(notice.saved_s - notice.began_s, 1)
        told["checkpoint"] = {"path": notice.saved.path, "step": notice.saved.step}
    save = attempt_of(state).in_time
    if save is not None and save.is_running:
        told["jit"] = save.told
    if notice.saved is not None or notice.is_stopping or state.phase is Phase.ENDING:
        told["in_time"] = notice.saved is not None
    if notice.is_requeued is not None or notice.requeue_why:
        told["requeued"], told["requeue_why"] = bool(notice.is_requeued), notice.requeue_why
    return {key: value for key, value in told.items() if value not in ("", [], {}, False) or key == "in_time"}


def sentence_of(state: State) -> str:
    """The incident's summary at this stage: ranks still saving, a checkpoint whole, or none in time."""
    notice = state.notice
    why = _why(notice)
    if notice.saved is not None:
        took_s = notice.saved_s - notice.began_s
        tail = ", and the job was requeued" if notice.is_requeued else ""
        return f"{why}; checkpoint {notice.saved.path} (step {notice.saved.step}) was whole after {took_s:.1f} s{tail}."
    if notice.is_stopping or state.phase is Phase.ENDING:
        step = f" Training had got to step {attempt_of(state).step}." if attempt_of(state).step else ""
        return f"{why}, and no checkpoint was whole in time.{step}"
    given_s = notice.deadline_s - notice.began_s
    asked = "were given the signal" if notice.is_forwarded else "are asked to save"
    return f"{why}; the ranks {asked}, and have {given_s:.0f} s."


def _why(notice: Notice) -> str:
    if notice.cause == TIME_LIMIT:
        return "The job's time limit was near"
    told = f" ({notice.why.replace('_', ' ')})" if notice.why else ""
    return f"{signal.Signals(notice.signum).name}{told} said that the job was about to end"
