"""Which nodes are near one another in the network: by the switches that they hang below. Pure.

Rings and trees of collectives go from rank to rank, so that each boundary between two switches costs once where nodes
of one switch follow on one another, and many times where they alternate. A scheduler's list of nodes is sorted by name,
mostly, and names need not follow the cabling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Switches = Mapping[str, Sequence[str]]
"""Node → the switches above it, from the top of the network down; none where it is not known."""


def by_switch(nodes: Sequence[str], switches: Switches, level: int = 0) -> list[str]:
    """Nodes below one switch next to each other, at every level; else in the order given.

    Whoever comes first draws those of its switches to itself. Nodes of which nothing is known, and those that hang at a
    higher level than others, stand for themselves.
    """
    groups: dict[tuple[str, bool], list[str]] = {}
    for node in nodes:
        above = switches.get(node, ())
        groups.setdefault((above[level], True) if len(above) > level else (node, False), []).append(node)
    found: list[str] = []
    for (_, is_switch), group in groups.items():
        found += by_switch(group, switches, level + 1) if is_switch and len(group) > 1 else group
    return found


def nearest(nodes: Sequence[str], place: str, switches: Switches) -> str:
    """Of these, the one with most switches in common with another; the first of several. nodes: one at the least."""
    return max(nodes, key=lambda node: _common(switches.get(node, ()), switches.get(place, ())))


def _common(ones: Sequence[str], others: Sequence[str]) -> int:
    count = 0
    for one, other in zip(ones, others, strict=False):
        if one != other:
            break
        count += 1
    return count
