"""Back to before training was spoilt (`[guards] numeric = "rollback"`): where that may help, and loses nothing.

An attempt whose parameters are no numbers any more, or whose loss has leapt up for good, trains for nothing. It is
ended, and the next one resumes from the newest checkpoint that was written before: none that was written since is
chosen again (`State.spoiled`). Where the same step goes wrong again it is the data or the code, and another rollback
would not help.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.verdicts import Poisoned
from guardrun.supervisor.engine.recovery.voluntary import refusals
from guardrun.supervisor.engine.state.state import State, attempt_of


def why_not(state: State, verdict: Poisoned) -> str:
    """Why the attempt goes on as it is; empty: it is to be ended."""
    settings, resumed = state.settings, attempt_of(state).resumed_from
    if why := refusals.why_not(state):
        return why
    if resumed is not None and verdict.from_step <= resumed.step:
        return f"{resumed.path}, from which it resumed, has it already"
    if resumed is None and not verdict.is_any_sound:
        return "no checkpoint from before is known"
    if len(state.rollbacks) >= settings.max_rollbacks:
        return f"there were {len(state.rollbacks)} already (max_rollbacks)"
    if any(abs(step - verdict.step) <= verdict.within for step in state.rollbacks):
        return f"step {verdict.step} went wrong before a rollback, too: it is the data, or the code"
    return ""


def note(state: State, verdict: Poisoned) -> None:
    """What is written from then on, until nothing of the attempt is alive, is not to be chosen."""
    state.rollbacks.append(verdict.step)
    attempt = attempt_of(state).number
    spoiled = Spoiled(attempt=attempt, from_step=verdict.from_step, since_s=verdict.since_s, until_s=0.0)
    state.spoiled.append(spoiled)
