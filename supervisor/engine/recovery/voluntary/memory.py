"""When a save is wanted because memory runs out, and whether a restart from it is worth what it costs. Pure.

    far        it is only told
    a save by the script itself, of which the next one may come too late     it is looked whether it is whole
    near       the ranks are asked to save, and it is looked out for what they save

Near is late enough to matter, and early enough for a save: SAVES times as long as the longest one took, and MARGIN
windows of the kind that showed the growth. When memory runs out is known by its soonest and its usual moment; both have
to be near, since the first may have more doubt in it than room.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.lost_time import STARTING
from guardrun.supervisor.engine.recovery.voluntary import refusals
from guardrun.supervisor.engine.state.memory_save import MemorySave
from guardrun.supervisor.engine.state.state import State, attempt_of

MARGIN = 5
"""Windows of [leaks] memory_window_s."""
SAVES = 3
AHEAD = 1.5
"""Times the usual gap between saves: the one after the next comes too late."""
DOUBT = 3
"""Times that, or what is near, until the usual moment."""
WORTH = 10
"""Times as long as a start takes an attempt must have lasted, from the second restart on: a finding that is wrong costs
a tenth of the time at most."""


def lead_s(state: State) -> float:
    """How long before memory runs out the ranks are asked to save."""
    return MARGIN * state.settings.memory_window_s + SAVES * state.save_times.longest_s


def ask_s(state: State, key: str) -> float:
    """When the ranks are to be asked for what a finding says."""
    return _near_s(attempt_of(state).memory_save, key, lead_s(state))


def is_last_save(state: State, key: str, now_s: float) -> bool:
    """Whether the script has saved by itself for the last time before memory runs out by what a finding says."""
    gap_s = state.save_times.usual_gap_s
    return gap_s > 0 and now_s >= _near_s(attempt_of(state).memory_save, key, AHEAD * gap_s)


def _near_s(save: MemorySave, key: str, lead: float) -> float:
    soonest_s, usual_s = save.outlooks[key]
    return max(soonest_s - lead, usual_s - DOUBT * lead)


def why_not_now(state: State, key: str, now_s: float) -> str:
    """What keeps guardrun from it that may be over soon; empty: nothing."""
    if why := refusals.why_not_now(state):
        return why
    suspicion = state.detectors.hang.suspicion
    if suspicion is not None and suspicion.stall is not None:
        return "the ranks stand still"  # which may be a hang: it comes with evidence
    if state.is_node_silent:
        return "a node is not heard of"
    outlook = attempt_of(state).memory_save.outlooks.get(key)
    if outlook is not None and 0 < state.notice.end_s <= outlook[0]:
        return "the job ends before"
    lasted_s, start_s = now_s - attempt_of(state).started_s, _start_s(state, now_s)
    if state.memory_restarts and lasted_s < WORTH * start_s:
        return f"a start takes {start_s:.0f} s, and this attempt has lasted {lasted_s:.0f} s"
    return ""


def _start_s(state: State, now_s: float) -> float:
    """How long an attempt of this run takes until it trains, on the average."""
    return state.ledger.total(STARTING, now_s) / (len(state.attempts) + 1)


def why_not(state: State, step: int) -> str:
    """Why a checkpoint of this step (0: not known) is not resumed from right away."""
    if why := refusals.why_never(state) or refusals.why_no_next(state):
        return why
    resumed = attempt_of(state).resumed_from
    if resumed is not None and 0 < step <= resumed.step:
        return f"it is no further than {resumed.path}, from which this attempt resumed"
    return ""
