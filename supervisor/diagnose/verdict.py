"""From what was seen to the answer: verdict, sentence, how sure, and on what it rests."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose.hang_finding import (
    Absent,
    Judged,
    has_advanced,
    is_doubtful,
    is_same,
    judge_seen,
    rank_lines,
)
from guardrun.supervisor.diagnose.scene import Glance
from guardrun.supervisor.engine.detectors.hang import patience
from guardrun.supervisor.engine.detectors.hang.memory import Suspicion
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.incidents.evidence import of_hang
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model.actions import Culprit, ranks_of
from guardrun.supervisor.engine.model.hang_patience import NEVER_S
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.run_view import silence_began_s
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import RankActivity
from guardrun.supervisor.engine.observation.stack_grouping import group_data, group_looks
from guardrun.supervisor.engine.recovery.decide import BY_HAND
from guardrun.supervisor.engine.state import hand_changes
from guardrun.supervisor.engine.state.incidents import culprits_of
from guardrun.supervisor.engine.state.state import Attempt, State
from guardrun.supervisor.report.elements.quantities import duration, iso_time

SURE_AFTER_S = 30.0
"""Without hooks nothing tells for how long it has been so: looks this far apart leave little doubt (an idle frame's
patience), closer ones more."""
RECENT_S = 2.0
"""Progress this fresh needs no other explanation."""


class Case(NamedTuple):
    """All that the verdict is made of."""

    target: an.Target
    seen: list[Glance]
    judged: Judged
    is_confirmed: bool
    """Two pairs of looks say the same."""
    incidents: list[dict[str, Any]]
    """The run's, as incident.json has them."""

    @property
    def last(self) -> Glance:
        """The newest look."""
        return self.seen[-1]

    @property
    def state(self) -> State:
        """What was known of the run at the newest look."""
        return self.last.state

    @property
    def attempt(self) -> Attempt:
        """The attempt whose ranks were looked at; there is one in every case."""
        assert self.state.attempt is not None
        return self.state.attempt

    @property
    def observed_s(self) -> float:
        """Between the first and the last look."""
        return self.last.now_s - self.seen[0].now_s

    @property
    def looks(self) -> list[RankLook]:
        """Of the newest look, by global rank; ranks that could not be looked at are missing."""
        return [look for _, look in sorted(self.last.ranks.items())]

    @property
    def silent_s(self) -> float:
        """Since the last progress; since the start before any."""
        return max(0.0, self.last.now_s - silence_began_s(self.attempt))

    @property
    def usual_s(self) -> float:
        """Silence that is not unusual for this run."""
        return self.state.gaps.suspicious_after_s(self.state.settings.floor_s)


def make_case(target: an.Target, seen: list[Glance], absent: Absent, incidents: list[dict[str, Any]]) -> Case:
    """Judge the last two looks, and whether the two before said the same."""
    judged = [judge_seen(seen[n], seen[n + 1], absent) for n in range(len(seen) - 1)]
    is_confirmed = len(judged) > 1 and is_same(judged[-2], judged[-1])
    return Case(target, seen, judged[-1], is_confirmed, incidents)


def name_hand_changes(diagnosis: an.Diagnosis, state: State) -> None:
    """What people have changed in this attempt belongs to what a diagnosis rests on."""
    attempt = state.attempt
    if attempt is None or not state.by_hand:
        return
    resumed = attempt.resumed_from
    changes = hand_changes.before(state.by_hand, attempt.number, resumed.step if resumed is not None else None)
    if changes:
        diagnosis.evidence[BY_HAND] = hand_changes.evidence(changes, state.last_s)
        last = hand_changes.last_seen(changes)
        before = f"; changed by hand before: {hand_changes.said(last)}" if last is not None else ""
        diagnosis.why = f"{diagnosis.why}{before}".removeprefix("; ")


def conclude(case: Case) -> an.Diagnosis:
    """The verdict on a running job."""
    found = case.judged.found
    if case.state.is_crashing:
        diagnosis = _fallen(case)
    elif not case.judged.by_rank or all(j.doing is RankActivity.GONE for j in case.judged.by_rank.values()):
        diagnosis = _make_diagnosis(
            case, an.UNKNOWN, "Every rank ended while it was looked at.", 0.9, "how they ended is not seen"
        )
    elif found is None:
        diagnosis = _gets_on(case)
    elif not _is_sure(found) and has_advanced(case.seen):
        diagnosis = _advances(case)
    elif case.attempt.has_progress or case.target.source == "supervisor":
        diagnosis = _with_history(case, found)
    else:
        diagnosis = _without_history(case, found)
    return _complete(case, diagnosis)


def _make_diagnosis(case: Case, verdict: str, summary: str, confidence: float, why: str) -> an.Diagnosis:
    return an.Diagnosis(target=case.target, verdict=verdict, summary=summary, confidence=confidence, why=why)


def _complete(case: Case, diagnosis: an.Diagnosis) -> an.Diagnosis:
    """What every answer on a running job has."""
    attempt, culprits = case.attempt, ranks_of(diagnosis.culprits)
    first = case.seen[-2] if len(case.seen) > 1 else case.last
    diagnosis.observed_s = round(case.observed_s, 1)
    diagnosis.step = attempt.step if attempt.has_progress or attempt.resumed_from else None
    diagnosis.ranks = rank_lines(attempt, case.judged, first.ranks, case.last.ranks, culprits)
    diagnosis.stacks = [group_data(group) for group in group_looks(case.looks, culprits)]
    return diagnosis


# Nothing is held up -------------------------------------------------------------------------------------


def _gets_on(case: Case) -> an.Diagnosis:
    """Somebody gets somewhere."""
    if case.attempt.has_progress and case.silent_s <= max(RECENT_S, case.usual_s):
        return _advances(case)
    busy = {n: j.reason for n, j in case.judged.by_rank.items() if j.doing is RankActivity.BUSY or j.is_moving}
    who = ranks_text(list(busy)) if busy else "nobody"
    reason = next(iter(busy.values()), "nothing stands still that others wait for")
    if case.attempt.has_progress:
        told = f"Nothing has advanced for {duration(case.silent_s)}, but {who} gets somewhere: {reason}."
        return _make_diagnosis(
            case, an.HEALTHY, _one(told, busy), 0.8, "as long as anybody gets somewhere, it is no hang"
        )
    if case.target.source == "supervisor":
        told = f"It starts: {who} gets somewhere: {reason}."
        return _make_diagnosis(case, an.STARTING, _one(told, busy), 0.8, "no rank has made progress yet")
    told = f"It runs: {who} gets somewhere: {reason}."
    why = f"seen from outside for {duration(case.observed_s)}; without guardrun no steps can be seen"
    return _make_diagnosis(case, an.HEALTHY, _one(told, busy), 0.7, why)


def _one(text: str, who: dict[int, str]) -> str:
    return text if len(who) <= 1 else text.replace(" gets somewhere", " get somewhere")


def _advances(case: Case) -> an.Diagnosis:
    step = f", step {case.attempt.step}" if case.attempt.step else ""
    if not case.attempt.has_progress and case.target.source == "supervisor":
        told = f"It starts: last sign of life {duration(case.silent_s)} ago."
        return _make_diagnosis(case, an.STARTING, told, 0.9, "no rank has made progress yet")
    told = f"Training is healthy: last progress {duration(case.silent_s)} ago{step}."
    if has_advanced(case.seen):
        return _make_diagnosis(case, an.HEALTHY, told, 0.99, "it has advanced while it was looked at")
    why = f"silence of {duration(case.usual_s)} would be unusual for this run"
    return _make_diagnosis(case, an.HEALTHY, told, 0.85, why)


# Something is held up -----------------------------------------------------------------------------------


def _with_history(case: Case, found: Finding) -> an.Diagnosis:
    """Patience is guardrun's own, counted from the last progress."""
    state = case.state
    hang = state.detectors.hang
    if hang.suspicion is None:
        hang.suspicion = Suspicion(began_s=case.last.now_s, reason="asked", next_look_s=case.last.now_s)
    for rank in found.culprits if found.is_proof else ():
        case.attempt.stopped.setdefault(rank, case.seen[0].now_s)
    now_s = case.last.now_s
    told_s = patience.told_s(hang, state, found, case.looks, now_s)
    left_s = max(0.0, patience.left_s(hang, state, found, case.judged.seen, now_s))
    incident = _of_this_silence(case, found)
    is_fresh = case.attempt.has_progress and case.silent_s <= max(RECENT_S, state.gaps.typical_s)
    if is_fresh and not _is_sure(found) and incident is None:
        return _advances(case)
    if not _is_sure(found) and not case.attempt.has_progress and left_s and case.silent_s <= case.usual_s:
        why = f"no rank has made progress yet, {duration(case.silent_s)} after the start"
        return _make_diagnosis(case, an.STARTING, _sentence(case, found, told_s), 0.7, why)
    is_hang = incident is not None or _is_sure(found) or (not left_s and not is_doubtful(found))
    diagnosis = _held_up(case, found, told_s, an.HANG if is_hang else an.SUSPICIOUS)
    diagnosis.onset = iso_time(case.last.wall_s - told_s)
    if is_hang:
        diagnosis.confidence = found.confidence
        diagnosis.why = f"nothing has advanced for {duration(case.silent_s)}"
    else:
        diagnosis.confidence = round(found.confidence * 0.7, 2)
        diagnosis.patience_left_s = round(left_s, 1) if left_s < NEVER_S else None
        diagnosis.why = _why_not_yet(case, left_s)
    if incident is not None:
        diagnosis.why += f"; it is incident {incident['id']} of the run"
    return diagnosis


def _is_sure(found: Finding) -> bool:
    """Whether one pair of looks is enough, and no patience is needed."""
    return found.is_proof or found.is_certain


def _why_not_yet(case: Case, left_s: float) -> str:
    settings = case.state.settings
    if left_s >= NEVER_S:
        would = "guardrun leaves it alone: nobody is seen to wait for it"
    elif not settings.act or case.state.is_held:
        would = f"guardrun would call it a hang in {duration(left_s)} (and is told to change nothing)"
    else:
        would = f"guardrun calls it a hang, and restarts the ranks, if it lasts {duration(left_s)} longer"
    return f"nothing has advanced for {duration(case.silent_s)}; {would}"


def _of_this_silence(case: Case, found: Finding) -> dict[str, Any] | None:
    """The incident that guardrun itself has opened on what is seen now."""
    suspicion = case.state.detectors.hang.suspicion
    known = case.state.detected.get(suspicion.key, "") if suspicion is not None else ""
    for incident in case.incidents:
        if incident.get("id") == known or (
            incident.get("kind") == "hang"
            and incident.get("attempt") == case.attempt.number
            and incident.get("recovered") is None
            and incident.get("cause") == found.cause
        ):
            return incident
    return None


def _without_history(case: Case, found: Finding) -> an.Diagnosis:
    """Nobody has watched it: for how long it has been so is not known, only that it is so now."""
    observed_s = float(math.floor(case.observed_s))  # a lower bound is rounded down
    if not (case.is_confirmed or _is_sure(found)):
        return _make_diagnosis(case, an.UNKNOWN, "What is seen changes from look to look.", 0.5, _seen_for(case))
    if is_doubtful(found) or (found.doing is RankActivity.UNSEEN and not found.waiting):
        reasons = "; ".join(sorted({case.judged.by_rank[rank].reason for rank in found.culprits}))
        who = ranks_text(found.culprits)
        gets = "get" if len(found.culprits) > 1 else "gets"
        told = f"It cannot be told whether {who} {gets} anywhere: {reasons}."
        return _make_diagnosis(case, an.UNKNOWN, told, 0.5, _seen_for(case))
    diagnosis = _held_up(case, found, observed_s, an.HANG)
    diagnosis.summary = at_least(diagnosis.summary, observed_s)
    share = 1.0 if _is_sure(found) else min(1.0, 0.8 + 0.2 * case.observed_s / SURE_AFTER_S)
    diagnosis.confidence = round(found.confidence * share, 2)
    diagnosis.why = _seen_for(case)
    return diagnosis


def _seen_for(case: Case) -> str:
    return (
        f"seen from outside for {duration(case.observed_s)}; without guardrun around it nothing tells for how long "
        "it has been so"
    )


def at_least(sentence: str, seconds: float) -> str:
    """The sentence, with its duration as a lower bound."""
    return sentence.replace(f" {seconds:.0f} s", f" at least {seconds:.0f} s", 1)


def _held_up(case: Case, found: Finding, silent_s: float, verdict: str) -> an.Diagnosis:
    evidence = of_hang(case.state, found, case.judged.seen, silent_s)
    return an.Diagnosis(
        target=case.target,
        verdict=verdict,
        kind="hang",
        cause=found.cause,
        summary=_sentence(case, found, silent_s),
        culprits=culprits_of(case.attempt, found.culprits, {}),
        silent_s=round(silent_s, 1),
        evidence=msgspec.to_builtins(evidence, str_keys=True),
        advice=advice_for(found.cause, evidence),
    )


def _sentence(case: Case, found: Finding, silent_s: float) -> str:
    return hang_sentence(case.attempt, found, case.judged.by_rank, silent_s)


# Ranks fell ---------------------------------------------------------------------------------------------


def _fallen(case: Case) -> an.Diagnosis:
    fallen = {n: r.exitcode for n, r in case.attempt.ranks.items() if r.exitcode not in (None, 0)}
    how = ", ".join(f"rank {n} ({exit_words(code)})" for n, code in sorted(fallen.items()) if code is not None)
    told = f"Ranks have fallen: {how or 'which of them is being found out'}; guardrun is finding out why."
    diagnosis = _make_diagnosis(case, an.CRASHED, told, 0.9, "their exit codes")
    diagnosis.kind, diagnosis.cause = "crash", "unknown"
    return diagnosis


def exit_words(code: int) -> str:
    """`signal 9`, `exit 1`. code: as subprocess has it, negative for a signal."""
    return f"signal {-code}" if code < 0 else f"exit {code}"


def conclude_phase(target: an.Target, seen: Glance, incidents: list[dict[str, Any]]) -> an.Diagnosis:
    """The verdict while no ranks run: between two attempts, before the first, after the last."""
    state = seen.state
    if state.phase in (Phase.STOPPING, Phase.ENDING) and not state.signum and incidents:
        last = incidents[-1]
        doing = "ends the run" if state.phase is Phase.ENDING else "is stopping the ranks"
        is_hang = last.get("kind") == "hang"
        return an.Diagnosis(
            target=target,
            verdict=an.HANG if is_hang else an.CRASHED,
            kind=last.get("kind"),
            cause=last.get("cause"),
            confidence=float(last.get("confidence") or 0.0),
            summary=str(last.get("summary", "")),
            why=f"incident {last.get('id')} of the run; guardrun {doing}",
            onset=last.get("onset"),
            step=last.get("step"),
            culprits=msgspec.convert(last.get("culprits") or [], known_type(list[Culprit])),
            advice=str(last.get("advice", "")),
        )
    if state.signum:
        told = f"The run is being ended: signal {state.signum}."
        return an.Diagnosis(target=target, verdict=an.FINISHED, summary=told, confidence=0.99, why="its supervisor")
    if state.phase is Phase.RUNNING and state.attempt is not None:
        told = f"No rank of attempt {state.attempt.number} can be looked at: they end, or have only just begun."
        return an.Diagnosis(target=target, verdict=an.UNKNOWN, summary=told, confidence=0.5, why="ask again")
    number = state.attempt.number + 1 if state.attempt is not None else 0
    after = f", after incident {incidents[-1].get('id')}" if incidents and number else ""
    told = f"Attempt {number} is being started{after}."
    if state.phase in (Phase.STOPPING, Phase.ENDING, Phase.ENDED):
        told = "The run is ending."
    return an.Diagnosis(target=target, verdict=an.STARTING, summary=told, confidence=0.9, why="its supervisor")
