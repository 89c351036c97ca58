"""A run that waits for nodes says for whom: at first after some seconds, then rarely."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.job_nodes import Fleet, missing_words, present_words
from guardrun.supervisor.engine.state.state import State

FIRST_S = 10.0
"""Nodes that are there within that need no words."""
AGAIN_S = 60.0
RARELY_S = 300.0


def begin(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """It waits from now on: before the first attempt nodes are still being started, later they are missed."""
    if state.attempt is None:
        fleet.say_s = now_s + FIRST_S
        return []
    fleet.say_s = now_s + AGAIN_S
    return [announce(f"waiting for nodes: {missing_words(fleet)}", level="warn")]


def remind(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Say it again, where that is due."""
    if not fleet.say_s or now_s < fleet.say_s or fleet.requeue_s:
        return []
    again_s = fleet.since_s + AGAIN_S
    fleet.say_s = again_s if now_s < again_s else now_s + RARELY_S
    waited_s = now_s - fleet.since_s
    text = f"waiting for nodes: {present_words(fleet)}; {state.settings.join_timeout_s - waited_s:.0f} s at most"
    if state.attempt is None:
        text += ". They find this one by the folder of runs, which all must share, or by --guard-join"
    return [announce(text, level="warn")]
