"""Who may join: what is asked when two say that they are the same node, or the same place in the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from guardrun.supervisor.fleet.transport.envelopes import Join

MAX_LEVELS, MAX_SWITCH_CHARS, MAX_ROLE_CHARS = 16, 256, 256
"""More than networks have; a scheduler's list of switches of one level is one name."""
GONE_S = 10.0
"""A connected rival that has said nothing for so long is taken for gone: it sends something every second."""


class Present(NamedTuple):
    """A deputy that has joined before."""

    node: str
    slot: int
    incarnation: int
    is_connected: bool
    silent_s: float
    """Since its last frame."""


Decide = Callable[[Join, Sequence[Present]], str]
"""May this one join, in place of those present that have its name or its slot? Empty: yes; else the reason why not."""


def switches_of(info: Mapping[str, Any]) -> list[str]:
    """Those above a node that joins, as it tells them; none where that is no list of names."""
    told = info.get("switches")
    if not isinstance(told, list) or len(told) > MAX_LEVELS:
        return []
    return told if all(isinstance(one, str) and len(one) <= MAX_SWITCH_CHARS for one in told) else []


def role_of(info: Mapping[str, Any]) -> str:
    """The --role of a node that joins, as it tells it; the same for all where that is no name."""
    told = info.get("role")
    return told if isinstance(told, str) and len(told) <= MAX_ROLE_CHARS else ""


def newer_if_gone(join: Join, rivals: Sequence[Present]) -> str:
    """The newer one, for the same name and slot, once the older is gone."""
    for rival in rivals:
        is_gone = not rival.is_connected or rival.silent_s > GONE_S
        if rival.node == join.node and rival.slot != join.slot:
            return (
                f"{join.node} has joined as number {rival.slot} of the job, and now says {join.slot}: start one "
                "guardrun a node, each with a --node-rank of its own"
            )
        if rival.node != join.node:
            return f"number {join.slot} of the job is {rival.node}: give each node a --node-rank of its own"
        if not is_gone:
            return f"{join.node} has joined already, and its first guardrun is still there: start one a node"
    return ""
