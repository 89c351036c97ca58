"""A crash as verdicts tell it: the incident, or who is to blame for one that was told without a culprit."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.detectors.failure.crash_evidence import crash_evidence, failed_load, words
from guardrun.supervisor.engine.detectors.failure.memory import Crash
from guardrun.supervisor.engine.failures.mismatch_report import explain, last_calls
from guardrun.supervisor.engine.failures.root_cause import Fall, RootCause, blame
from guardrun.supervisor.engine.incidents.evidence import of_collectives
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, attempt_of, wrong_with
from guardrun.supervisor.engine.model.verdicts import Changed, Detected
from guardrun.supervisor.engine.observation.collective_waits import match

NO_TRACE = RootCause(
    cause="unknown",
    culprits=[],
    confidence=0.3,
    key="",
    exit_code=1,
    what="ended",
    why_nobody="no rank's end was seen",
)
"""Of an attempt that ended without a rank that has fallen."""


def find_root_cause(view: RunView, crash: Crash, falls: list[Fall]) -> RootCause:
    """Why these ranks fell, with what they had called last."""
    if not falls:
        return NO_TRACE
    ended = [n for n, rank in attempt_of(view).ranks.items() if rank.exitcode == 0]
    return explain(blame(falls, crash.readings, view.hosts), match(last_calls(crash.traces)), ended)


def detected(view: RunView, crash: Crash, found: RootCause, falls: list[Fall]) -> Detected:
    """The crash's incident, for which the attempt ends; its action is `none` where acting is off or held."""
    attempt = attempt_of(view)
    evidence, is_uneven = _evidence(view, crash, found, falls)
    return Detected(
        key=f"rank_failure/{attempt.number}",
        kind="crash",
        cause=found.cause,
        confidence=found.confidence,
        summary=_sentence(attempt, found, evidence),
        culprits=found.culprits,
        onset_s=crash.began_s,
        evidence=evidence,
        level="bad",
        ends_with_progress=True,
        action="restart" if view.may_act else "none",
        is_uneven=is_uneven,
        exit_code=found.exit_code,
        avoid=evidence.get("checkpoint", ""),
    )


def retold(view: RunView, crash: Crash, found: RootCause, falls: list[Fall]) -> Changed:
    """The incident that was told without a culprit, because it was time, gets one: it took long to die."""
    evidence, is_uneven = _evidence(view, crash, found, falls)
    return Changed(
        key=crash.key,
        cause=found.cause,
        confidence=found.confidence,
        summary=_sentence(attempt_of(view), found, evidence),
        culprits=found.culprits,
        evidence=evidence,
        level="bad",
        is_uneven=is_uneven,
        exit_code=found.exit_code,
        avoid=evidence.get("checkpoint", ""),
    )


def _evidence(view: RunView, crash: Crash, found: RootCause, falls: list[Fall]) -> tuple[dict[str, Any], bool]:
    """What is known of the crash, and whether calls were as uneven as Detected has it."""
    attempt, is_uneven = attempt_of(view), False
    evidence = crash_evidence(attempt, crash, found, falls)
    if found.cause == "collective_mismatch":
        looks = last_calls(crash.traces)
        met = match(looks)
        is_uneven = met.is_uneven
        evidence |= of_collectives(met, looks)
    if found.left_early:
        evidence["left_early"] = found.left_early
    if wrong := wrong_with(view, found.culprits):
        evidence["node_findings"] = wrong
    path = failed_load(attempt, found) if found.cause == "checkpoint_corrupt" else ""
    if path:
        evidence["checkpoint"] = path
        if path in view.avoid and not crash.key:
            evidence["loaded_again"] = True
    return evidence, is_uneven


def _sentence(attempt: AttemptView, found: RootCause, evidence: dict[str, Any]) -> str:
    step = _step_words(attempt)
    if found.culprits:
        beside = {rank for other in found.beside for rank in other.ranks}
        first = [rank for rank in found.culprits if rank not in beside]
        many = len(first) > 1 and found.what.startswith("was ")
        what = f"were {found.what.removeprefix('was ')}" if many else found.what
        others = "".join(f", and {_later(attempt, other.ranks)} {other.what}" for other in found.beside)
        return f"{who(attempt, first)} {what}{others}{step}{words(found, evidence)}."
    if found.cause == "collective_mismatch":
        return f"Collectives did not meet{step}: {found.why_nobody}."
    if found is NO_TRACE:
        return f"The attempt ended{step}, and {found.why_nobody}."
    fallen = sorted(n for n, r in attempt.ranks.items() if r.exitcode not in (None, 0) or r.error)
    if found.left_early:
        early = who(attempt, found.left_early)
        return (
            f"{early} ended with exit code 0{step} while others still expected it in a collective, and "
            f"{_later(attempt, fallen)} {found.what}: which of them is wrong cannot be told."
        )
    return f"{who(attempt, fallen)} {found.what}{step}, but who is to blame cannot be told: {found.why_nobody}."


def _later(attempt: AttemptView, ranks: list[int]) -> str:
    """Whose, within a sentence."""
    return who(attempt, ranks).replace("Rank", "rank", 1)


def _step_words(attempt: AttemptView) -> str:
    """` at step 23`; ` after step 20` where that is only the checkpoint's: no step since, or none that is counted."""
    if not attempt.step:
        return ""
    resumed = attempt.resumed_from
    is_known = resumed is None or attempt.step > resumed.step
    return f" {'at' if is_known else 'after'} step {attempt.step}"
