"""Who takes part in the next attempt: a pure function of the nodes, as the head knows them, and of time.

`compute_membership(now_s, nodes, options) -> Membership` reads plain data and changes nothing: whoever asks books the
outcome (formation.py). Asked twice, it answers the same.

What goes in:
- now_s, in the engine's seconds, like all times here.
- nodes, by name: how each stands (READY, SILENT, LOST, OUT, LEFT) and why, its number of ranks, its order (the
  scheduler's, else that of joining), who has drained it, the switches above it, whether it may be the head's own link
  that is cut (is_cut), and whether its guardrun was refused and nobody starts another (refused).
- options: how many nodes the user wants (plan: least, most, spares), who had which group rank before, since when nodes
  are waited for, and how long that may take.

What comes out:
- members: the next attempt's nodes in the order of group ranks, to be started now; nobody, where nodes are waited for.
- spares: all others that are ready.
- left_out: everybody else, with the reason.
- wait_until_s: None where there are members; else when to ask again at the latest, if no node changes until then. In
  the past: nobody is to be waited for any longer.
- may_suffice: those that are there, and all that may still come, would do. If not, waiting is in vain.

The rules, in the order in which they are applied:
1. Only READY nodes are chosen, at least `least` and at most `most`; with fewer everybody waits.
2. Whoever had a group rank keeps it. A drained node gives way to one that is not, and has as many ranks.
3. A free place goes to a node with as many ranks as the one before it, then to one that is not drained, then to the
   nearest in the network, then to the first in order.
4. Places that nobody had, up to `most`, go first to nodes with as many ranks as most members have.
5. Until last_call_s have been waited, and as long as somebody may come, nodes are waited for where an attempt could be
   larger, and where a first attempt would be without one of the first `most` nodes of the scheduler's order.
6. A first attempt has nodes of one switch next to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from guardrun.supervisor.engine.model.events import FleetPlan
from guardrun.supervisor.engine.state.job_nodes import Member, Standing, by_switch, nearest

Nodes = Mapping[str, Member]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants, and how it was before."""

    plan: FleetPlan
    before: Sequence[str] = ()
    """Nodes of the attempt before, in the order of group ranks; none: there was none. All are among the nodes."""
    since_s: float = 0.0
    """Since when nodes are waited for."""
    last_call_s: float
    """How long others are waited for where fewer would do."""
    join_timeout_s: float
    """How long nodes are waited for at all."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part; see above."""

    members: list[str]
    spares: list[str]
    left_out: dict[str, str]
    wait_until_s: float | None
    may_suffice: bool

    @property
    def ready(self) -> list[str]:
        """All that are there."""
        return [*self.members, *self.spares]


def compute_membership(now_s: float, nodes: Nodes, options: Options) -> Membership:
    """The nodes of the next attempt, who else is there, and who is not, and why."""
    ready = [one for one in nodes.values() if one.standing is Standing.READY]
    absent = [one for one in nodes.values() if one.standing is not Standing.READY]
    to_come = _count_to_come(len(ready), absent, options.plan)
    is_awaited = now_s < options.since_s + options.last_call_s and (to_come > 0 or _may_be_back(absent))
    members = _choose(nodes, ready, options, is_awaited=is_awaited)
    chosen = set(members)
    there = len(ready) + sum(one.standing is Standing.SILENT for one in absent)
    return Membership(
        members=members,
        spares=[one.node for one in ready if one.node not in chosen],
        left_out={one.node: one.why or one.standing.value for one in absent},
        wait_until_s=None if members else wait_until_s(now_s, options),
        may_suffice=there + to_come >= options.plan.least,
    )


def wait_until_s(now_s: float, options: Options) -> float:
    """When those that wait for nodes ask again at the latest: at the last call, then when it is over (or was)."""
    last_call_s, over_s = options.since_s + options.last_call_s, options.since_s + options.join_timeout_s
    return last_call_s if now_s < last_call_s < over_s else over_s


def _count_to_come(ready: int, absent: list[Member], plan: FleetPlan) -> int:
    """How many may still join: those of which nothing is known, and those whose guardrun may be started again."""
    known = ready + sum(one.standing is not Standing.LEFT or bool(one.refused) for one in absent)
    return max(plan.most + plan.spares - known, 0)


def _may_be_back(absent: list[Member]) -> bool:
    """Somebody that is known may be heard again within seconds: one is silent, or the head was cut off from it."""
    return any(one.standing is Standing.SILENT or (one.is_cut and one.standing is Standing.LOST) for one in absent)


def _choose(nodes: Nodes, ready: list[Member], options: Options, *, is_awaited: bool) -> list[str]:
    """Members in the order of group ranks; empty where more are waited for. is_awaited: somebody may yet come."""
    plan = options.plan
    if len(ready) < plan.least or (len(ready) < plan.most and is_awaited):
        return []
    in_order = sorted(ready, key=lambda one: (bool(one.drained), one.order))
    names = dict.fromkeys(one.node for one in in_order)
    kept = [node if node in names else "" for node in options.before[: plan.most]]
    if in_order[-1].drained:
        _give_way(nodes, kept, [one for one in in_order if not one.drained], options)
    taken = set(kept)
    free = [node for node in names if node not in taken]
    members = _fill(nodes, kept, free, options.before)
    members += _sort_for_new_places(nodes, members, free, options)[: plan.most - len(members)]
    if options.before:
        return members
    if is_awaited and any(one.order >= plan.most for one in in_order[: plan.most]):
        return []  # a spare was quicker than a node that is to train
    return by_switch(members, _switches(nodes))


def _give_way(nodes: Nodes, kept: list[str], well: list[Member], options: Options) -> None:
    """Clear the places of drained nodes for which others, with as many ranks, are left over.

    well: those that are there and not drained.
    """
    left_over = sum(one.node not in kept for one in well) - (options.plan.most - sum(map(bool, kept)))
    by_size = Counter(one.ranks for one in well if one.node not in kept)
    by_size.subtract(nodes[before].ranks for node, before in zip(kept, options.before, strict=False) if not node)
    for index, node in enumerate(kept):
        if left_over > 0 and node and nodes[node].drained and by_size[nodes[node].ranks] > 0:
            kept[index] = ""
            left_over -= 1
            by_size[nodes[node].ranks] -= 1


def _fill(nodes: Nodes, kept: list[str], free: list[str], before: Sequence[str]) -> list[str]:
    """The places that are kept, and the empty ones taken by those that are free, who then are not.

    A world size that changes breaks what is laid out for it (tensor and pipeline parallelism), so as many ranks count
    for more than anything else.
    """
    if not free or "" not in kept:
        return [node for node in kept if node]
    switches = _switches(nodes)
    members = [*kept]
    for must_match in (True, False):
        for index, predecessor in enumerate(before[: len(kept)]):
            if members[index]:
                continue
            ranks = nodes[predecessor].ranks
            if fit := [one for one in free if not must_match or nodes[one].ranks == ranks]:
                well = [one for one in fit if not nodes[one].drained]
                members[index] = nearest(well or fit, predecessor, switches)
                free.remove(members[index])
    return [node for node in members if node]


def _sort_for_new_places(nodes: Nodes, members: list[str], free: list[str], options: Options) -> list[str]:
    """For places that nobody had: first those with as many ranks as most members."""
    if not options.before or not members or not free or len(members) == options.plan.most:
        return free
    [(usual, _)] = Counter(nodes[node].ranks for node in members).most_common(1)
    return sorted(free, key=lambda node: nodes[node].ranks != usual)


def _switches(nodes: Nodes) -> dict[str, list[str]]:
    return {name: node.switches for name, node in nodes.items() if node.switches}
