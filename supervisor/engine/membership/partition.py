"""Nodes that fall silent in the same moment: one cause, which may be the head's own link.

Where all that the head heard (two nodes at least, spares included) fall silent within seconds, that each of them has
failed cannot be told from that the head is cut off: nobody is to blame. With a single other node nothing can be told
apart, and it is held to be that one. Where some are still heard, the head's link is well, and the others are lost.
"""

from __future__ import annotations

from collections.abc import Collection

from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing

TOGETHER_S = 5.0
"""Nodes pulse once a second: of those that are cut off in one moment the last words differ by one or two."""


def due_s(times: Collection[float]) -> float | None:
    """When silent nodes are given up: those whose time comes soon after the first one's, all together."""
    first_s = min(times, default=None)
    return None if first_s is None else max(at_s for at_s in times if at_s <= first_s + TOGETHER_S)


def cut_off(fleet: Fleet, head: str, since_s: float) -> list[str]:
    """All other nodes that the head heard until since_s, if it has heard none of them since; else nobody."""
    found: list[Member] = []
    for member in fleet.members.values():
        if member.node == head or member.standing in (Standing.OUT, Standing.LEFT):
            continue
        after_s = member.since_s - since_s
        if member.standing is Standing.READY or after_s > TOGETHER_S:
            return []
        if after_s >= -TOGETHER_S:
            found.append(member)
    return [member.node for member in sorted(found, key=lambda one: one.order)] if len(found) > 1 else []


def forgive(fleet: Fleet, head: str, member: Member, now_s: float) -> None:
    """A node is heard again, of which the head had heard as little as of any other: those may need a moment more.

    Connections are found again one after the other, by timers of their own. To be called before it stands otherwise.
    """
    if member.standing not in (Standing.SILENT, Standing.LOST) or not fleet.quiet:
        return
    for node in cut_off(fleet, head, member.since_s):
        other = fleet.members[node]
        if other.standing is Standing.SILENT and other is not member and not (other.is_dropped or other.is_missed):
            other.since_s = now_s
