"""Lost nodes that may come back by themselves, frozen or cut off for a moment: isolated only once they have not."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import isolate
from guardrun.supervisor.engine.state.state import State


def isolate_lost(state: State, node: str, incident_id: str, now_s: float) -> list[Action]:
    """Have a lost node isolated, at once or after [fleet] isolate_lost_s."""
    if not state.settings.isolate_lost_s:
        return [isolate(state, node, incident_id)]
    state.nodes.unsettled[node] = incident_id
    state.nodes.awaited[node] = now_s + state.settings.isolate_lost_s
    return []


def due_s(state: State) -> float | None:
    """When the first of them is to be isolated, in the engine's seconds; None: none is awaited."""
    return min(state.nodes.awaited.values(), default=None)


def on_tick(state: State, now_s: float) -> list[Action]:
    """Those that are not back in time."""
    return _isolate(state, [node for node, at_s in state.nodes.awaited.items() if now_s >= at_s])


def at_end(state: State) -> list[Action]:
    """The run, or its job, ends: nobody will see them come back."""
    return _isolate(state, list(state.nodes.awaited))


def _isolate(state: State, nodes: list[str]) -> list[Action]:
    watch = state.nodes
    for node in nodes:
        del watch.awaited[node]
    told = {node: watch.unsettled[node] for node in nodes if watch.unsettled.get(node) in state.incidents}
    return [isolate(state, node, incident_id) for node, incident_id in told.items()]
