"""Why an attempt is not ended for another one: what the user has set, what goes on, and the budgets of restarts.

The budgets are those of every restart (state/state.py, restart_policy.py). The rest holds for attempts that train: what
would have gone on is ended only where it is known what the next one resumes from.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.run_view import is_near_end
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import IGNORES, RESUMED, State, attempt_of


def why_not(state: State) -> str:
    """Why an attempt that trains is not ended; empty: the next one would go on in its place."""
    return why_not_now(state) or why_never(state) or why_no_next(state)


def why_not_now(state: State) -> str:
    """What of that may be over soon."""
    if state.is_held:
        return "the run is held (guardctl hold)"
    if state.phase is not Phase.RUNNING or state.signum or state.notice.cause or attempt_of(state).fell_s:
        return "the attempt is about to end"
    if is_near_end(state) or any(rank.exitcode is not None for rank in attempt_of(state).ranks.values()):
        return "a rank has ended already"
    return ""


def why_not_acted(state: State) -> str:
    """Why guardrun ends no attempt of this run by itself, whatever comes after it."""
    if not state.settings.act:
        return "[policy] act = false"
    return "torchrun's own agent decides what follows" if state.settings.is_torchrun_agent else ""


def why_never(state: State) -> str:
    """What of that is the user's setting, or the script's way."""
    settings, attempt = state.settings, attempt_of(state)
    if why := why_not_acted(state):
        return why
    if attempt.began_anew or (state.resumes == IGNORES and not settings.resumes):
        return "the script began anew beside a checkpoint before, instead of resuming from it"
    if not settings.resumes and not any(rank.milestones & RESUMED for rank in attempt.ranks.values()):
        return (
            "which checkpoint the script resumes from is its own choice; [checkpoint] resume_args or resume_env would "
            "let guardrun say"
        )
    return ""


def why_no_next(state: State) -> str:
    """Why none would follow an attempt that were to stop now."""
    if state.isolated_by:
        return f"{state.node} is quarantined"
    used_up = state.used_up(state.no_progress + 1 if state.gets_no_further else 0)
    if used_up == "max_no_progress":
        return "this attempt has got no further than the ones before (max_no_progress)"
    return "all restarts are used up (max_restarts)" if used_up else ""
