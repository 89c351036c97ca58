"""What is told at the end, of an attempt and of the run."""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.actions import Action, FinishRun, Summary
from guardrun.supervisor.engine.model.lost_time import OTHER
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import eviction
from guardrun.supervisor.engine.state.state import Attempt, State, attempt_of, enter


def finish(state: State, outcome: str, exit_code: int, reason: str, now_s: float) -> list[Action]:
    """Finish the run."""
    if state.attempt is not None:
        state.attempt.ended_s = state.attempt.ended_s or now_s
        record_attempt(state, outcome)
    state.ledger.switch(OTHER, now_s)
    enter(state, Phase.ENDED)
    state.outcome, state.exit_code, state.give_up_reason = outcome, exit_code, reason
    return [*eviction.at_end(state), FinishRun(exit_code=exit_code, summary=summary(state, now_s))]


def outcome_so_far(state: State) -> str:
    """What summary.json says of a run whose events have come so far; empty: the run has not ended.

    Where all was killed once every rank had ended with 0, and before that was seen, it has finished.
    """
    if state.phase is Phase.ENDED:
        return state.outcome
    attempt = state.attempt
    if attempt is None or state.phase is not Phase.RUNNING or attempt.stop_began_s:
        return ""
    has_finished = attempt.ranks and all(rank.exitcode == 0 for rank in attempt.ranks.values())
    return "finished" if has_finished else ""


def stop_words(state: State) -> str:
    """By which signal the run was ended, and where it came, as far as that is known."""
    if not state.signalled:
        return f"signal {state.signum}"
    return f"{signal_name(state.signum)} to guardrun on {state.signalled}"


def signal_name(signum: int) -> str:
    """`SIGTERM`; of a signal without a name, `signal 40`."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def summary(state: State, now_s: float) -> Summary:
    """summary.json's content as of now."""
    return Summary(
        outcome=state.outcome,
        exit_code=state.exit_code,
        reason=state.give_up_reason,
        attempts=state.attempts,
        incidents=[
            {
                "id": i.id,
                "kind": i.kind,
                "cause": i.cause,
                "summary": i.summary,
                "action": i.action,
                "attempt": i.attempt,
            }
            for i in state.incidents.values()
        ],
        restarts=state.restarts,
        wall_s=round(now_s - state.opened_s, 3),
        goodput=round(state.ledger.goodput(now_s), 4),
        lost_s=state.ledger.lost_s(now_s),
        last_step=state.best_step or None,
        stalls=list(state.detectors.hang.stalls),
        notes=[msgspec.to_builtins(note, str_keys=True) for note in state.remarks.values()],
        resumes=state.resumes,
        may_go_on=state.may_go_on,
        requeue=state.requeue,
        left_out=list(state.left_out),
        spike_score=state.detectors.numeric.metric_spikes.spike_score(),
    )


def record_attempt(state: State, outcome: str) -> None:
    """Add the attempt that is over to the history; once."""
    attempt = attempt_of(state)
    if not state.attempts or state.attempts[-1]["attempt"] != attempt.number:
        attempt.outcome = outcome
        state.attempts.append(attempt_record(attempt))
        state.best_step = max(state.best_step, attempt.step)
        sound = attempt.step if attempt.poisoned is None else min(attempt.step, attempt.poisoned.from_step)
        state.sound_step = max(state.sound_step, sound)


def attempt_record(attempt: Attempt) -> dict[str, Any]:
    """The attempt as summary.json lists it; seconds are the engine's, None where there was no such thing."""
    resumed = attempt.resumed_from
    return {
        "attempt": attempt.number,
        "started_s": round(attempt.started_s, 3),
        "ended_s": round(attempt.ended_s or attempt.started_s, 3),
        "outcome": attempt.outcome,
        "first_step": attempt.first_step,
        "last_step": attempt.step or None,
        "resumed_from": {"path": resumed.path, "step": resumed.step} if resumed else None,
        "incident": attempt.incident_id or None,
        **({"data_replay": attempt.data_replay} if attempt.data_replay else {}),
    }
