"""Back to before training was spoilt (`[guards] numeric = "rollback"`): where that may help, and loses nothing.

An attempt whose parameters are no numbers any more, or whose loss has leapt up for good, trains for nothing. It is
ended, and the next one resumes from the newest checkpoint that was written before: none that was written since is
chosen again (`State.spoiled`). That there is a whole one is looked at first, while the ranks train on: a script may
keep only a few, or one that it writes over. Where the same step goes wrong again it is the data or the code, and
another rollback would not help.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import ChooseCheckpoint, Spoiled
from guardrun.supervisor.engine.model.verdicts import Poisoned
from guardrun.supervisor.engine.recovery.voluntary import refusals
from guardrun.supervisor.engine.state.state import Attempt, GoingBack, State, attempt_of

LOOK_S = 120.0
"""For the checkpoints' file system; training goes on meanwhile."""


def why_not(state: State, verdict: Poisoned) -> str:
    """Why the attempt goes on as it is; empty: it is to be ended."""
    settings, resumed = state.settings, attempt_of(state).resumed_from
    if why := refusals.why_not(state):
        return why
    if resumed is not None and verdict.from_step <= resumed.step:
        return f"{resumed.path}, from which it resumed, has it already"
    if len(state.rollbacks) >= settings.max_rollbacks:
        return f"there were {len(state.rollbacks)} already (max_rollbacks)"
    if any(abs(step - verdict.step) <= verdict.within for step in state.rollbacks):
        return f"step {verdict.step} went wrong before a rollback, too: it is the data, or the code"
    return ""


def look(state: State, verdict: Poisoned, now_s: float) -> ChooseCheckpoint:
    """Ask for what there is to go back to, while the ranks train on."""
    state.choice += 1
    attempt_of(state).going_back = GoingBack(verdict=verdict, choice=state.choice, until_s=now_s + LOOK_S)
    return look_again(state, now_s)


def look_again(state: State, now_s: float) -> ChooseCheckpoint:
    """The same question, of which the answer is still to come."""
    going_back = attempt_of(state).going_back
    assert going_back is not None
    spoiled = spoiled_until(state, now_s)
    return ChooseCheckpoint(choice=going_back.choice, is_look=True, avoid=list(state.avoid), spoiled=spoiled)


def note(state: State, verdict: Poisoned) -> None:
    """The attempt is ended for it."""
    state.rollbacks.append(verdict.step)
    attempt_of(state).poisoned = verdict


def spoiled_until(state: State, now_s: float) -> list[Spoiled]:
    """What is spoilt by now, that of an attempt which may be about to be ended for it included."""
    attempt = state.attempt
    if attempt is None:
        return list(state.spoiled)
    verdict = attempt.poisoned
    if verdict is None and attempt.going_back is not None:
        verdict = attempt.going_back.verdict
    return list(state.spoiled) if verdict is None else [*state.spoiled, _spoiled(attempt, verdict, now_s)]


def _spoiled(attempt: Attempt, verdict: Poisoned, until_s: float) -> Spoiled:
    return Spoiled(attempt=attempt.number, from_step=verdict.from_step, since_s=verdict.since_s, until_s=until_s)
