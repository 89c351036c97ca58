"""What makes a job slow, told from what its ranks' steps go to: windows are closed here, and handed to who tells."""

from __future__ import annotations

from guardrun.supervisor.core import events as ev
from guardrun.supervisor.core import lostspeed, slowdata, stragglers
from guardrun.supervisor.core.actions import Action
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.core.state import State, attempt_of
from guardrun.supervisor.core.steptimes import WARM_UP


def on_report(state: State, event: ev.NodeReport, now_s: float) -> list[Action]:
    """Take in what a node's ranks have spent their time on; where a window is full, say what it shows."""
    attempt, times = attempt_of(state), state.slowdowns.times
    if state.phase is not Phase.RUNNING:
        return []
    if times.attempt != attempt.number:
        _begin_attempt(state)
    times.take(event)
    window_s = state.settings.window_s
    if not times.began_s:
        if times.last and attempt.step:
            times.begin(now_s, attempt.step, window_s)
        return []
    if not times.is_due(now_s, attempt.step):
        return []
    window = times.close(now_s, attempt.step, window_s)
    if window is None or times.closed <= WARM_UP:
        return []
    actions = stragglers.on_window(state, window, now_s)
    actions += slowdata.on_window(state, window, now_s)
    return actions + lostspeed.on_window(state, window, now_s)


def _begin_attempt(state: State) -> None:
    """Ranks of the same number have the same work, wherever they are: their places stay, where as many train again."""
    attempt, slow = attempt_of(state), state.slowdowns
    slow.times.begin_attempt(attempt.number)
    slow.strikes, slow.since_s, slow.well = {}, {}, {}
    slow.data_strikes = 0
    if slow.usual.world_size != len(attempt.ranks):
        slow.usual.forget(len(attempt.ranks))
        slow.told, slow.steady, slow.parts, slow.drop_incident = {}, [], [], ""
