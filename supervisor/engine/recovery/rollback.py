"""Back to before training was spoilt (`[guards] numeric = "rollback"`): where that may help, and loses nothing.

An attempt whose parameters are no numbers any more, or whose loss has leapt up for good, trains for nothing. It is
ended, and the next one resumes from the newest checkpoint that was written before: none that was written since is
chosen again (`State.spoiled`). Where the same step goes wrong again it is the data or the code, and another rollback
would not help.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Poisoned
from guardrun.supervisor.engine.state.state import RESUMED, State, attempt_of

SAME_STEPS = 1


def why_not(state: State, verdict: Poisoned) -> str:
    """Why the attempt goes on as it is; empty: it is to be ended."""
    settings, attempt = state.settings, attempt_of(state)
    resumed = attempt.resumed_from
    if not settings.act:
        return "[policy] act = false"
    if settings.is_torchrun_agent:
        return "torchrun's own agent would have to begin anew"
    if state.is_held:
        return "the run is held (guardctl hold)"
    if state.phase is not Phase.RUNNING or state.signum or state.notice.cause or attempt.fell_s:
        return "the attempt is about to end"
    if any(rank.exitcode is not None for rank in attempt.ranks.values()):
        return "a rank has ended already"
    if not settings.resumes and not any(rank.milestones & RESUMED for rank in attempt.ranks.values()):
        return (
            "which checkpoint the script resumes from is its own choice; [checkpoint] resume_args or resume_env would "
            "let guardrun say"
        )
    if resumed is not None and verdict.step <= resumed.step + SAME_STEPS:
        return f"{resumed.path}, from which it resumed, has it already"
    if resumed is None and not verdict.sound:
        return "no checkpoint from before is known"
    if len(state.rollbacks) >= settings.max_rollbacks:
        return f"there were {len(state.rollbacks)} already (max_rollbacks)"
    if any(abs(step - verdict.step) <= verdict.within for step in state.rollbacks):
        return f"step {verdict.step} went wrong before a rollback, too: it is the data, or the code"
    return _why_no_restart(state)


def _why_no_restart(state: State) -> str:
    """What would end the run in place of restarting it (restart_policy.py)."""
    settings, attempt = state.settings, attempt_of(state)
    if state.restarts >= settings.max_restarts:
        return "all restarts are used up (max_restarts)"
    is_no_further = attempt.number > 0 and attempt.step <= state.best_step
    if is_no_further and state.no_progress + 1 >= settings.max_no_progress > 0:
        return "this attempt has got no further than the ones before (max_no_progress)"
    if state.fleet is None and state.node in state.nodes.isolated:
        return f"{state.node} is quarantined"
    return ""


def note(state: State, verdict: Poisoned) -> None:
    """What is written from then on, until nothing of the attempt is alive, is not to be chosen."""
    state.rollbacks.append(verdict.step)
    spoiled = Spoiled(since_s=verdict.since_s, until_s=0.0, sound=list(verdict.sound), unsound=list(verdict.unsound))
    state.spoiled.append(spoiled)
