"""What does not run for a while and is well: nodes, frozen one by one or suspended together, and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.sim.failures import Truth
from benchmarks.sim.nodes import Node
from guardrun.supervisor.engine.model import events as ev

if TYPE_CHECKING:
    from benchmarks.sim.attempt import Attempt
    from benchmarks.sim.world import World

CLOSES = 0.5
"""Share of the nodes whose link to the head closes when they wake."""
JOINS_S = (0.1, 3.0)
"""After that they are back."""
LATE = 8
"""Nodes that wake later than the others after a suspend, …"""
LATE_S = 8.0
"""… by up to so much."""


def freeze(world: World, node: Node, lasts_s: float) -> None:
    """Nothing of a node runs, its guardrun and its ranks; all others wait for these. Then they go on."""
    if not node.is_heard:
        return
    node.is_frozen = True
    world.silence(node)
    attempt = world.attempt
    if attempt is not None and attempt.failed_s is None and node in attempt.nodes:
        attempt.stand(node, world.now_s)

    def heard() -> None:
        node.is_frozen = False
        if node.is_heard:
            world.heard_again(node, is_whole=True)

    def wake() -> None:
        if attempt is not None:
            attempt.go_on(node, world.now_s)
        if node.is_up and not node.is_muted and world.random.random() < CLOSES and node in world.allocation:
            node.is_silent = True
            world.feed(ev.NodeSuspected(node=node.name, since_s=node.heard_s, is_dropped=True))
            world.after(world.random.uniform(*JOINS_S), heard)
        else:
            heard()

    world.after(lasts_s, wake)


def pause(world: World, attempt: Attempt, rank: int, *, how: Truth, lasts_s: float) -> None:
    """One rank gets no further, as in a hang of that kind, and all others wait for it. Then they go on."""
    node = next(node for node in attempt.nodes if attempt.places[node.name] == rank // attempt.size)
    attempt.stand(node, world.now_s)
    attempt.hang, attempt.culprit = how, rank

    def go_on() -> None:
        if attempt.failed_s is None:
            attempt.hang, attempt.culprit = None, -1
            attempt.go_on(node, world.now_s)

    world.after(lasts_s, go_on)


def suspend(world: World, lasts_s: float) -> None:
    """Nothing of the whole job runs, the head included; some nodes wake a little later than the others."""
    world.skip(lasts_s)
    world.feed(ev.TimeSkipped(gap_s=lasts_s))
    others = world.allocation[1:]
    for node in world.random.sample(others, min(LATE, len(others))):
        freeze(world, node, world.random.uniform(0.0, LATE_S))
