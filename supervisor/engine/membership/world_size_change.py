"""Nodes with more or fewer ranks than others: a world size that changes with them is said, never taken for granted."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing, first_ranks


def say_odd(fleet: Fleet, placed: list[str], member: Member) -> list[Action]:
    """A node waits whose number of ranks none of those has that train. placed: who trains; empty: not known yet."""
    sizes = sorted({fleet.members[node].ranks for node in placed})
    if not sizes or member.ranks in sizes or member.node in placed:
        return []
    theirs = " or ".join(map(str, sizes))
    text = f"{member.node} waits with {_ranks(member.ranks)}, where those that train have {theirs}"
    return [announce(f"{text}: it takes a place only where no other node can", level="warn")]


def say_odd_spares(fleet: Fleet, placed: list[str]) -> list[Action]:
    """The first attempt is about to start: by now it is known who trains, and who waits."""
    if fleet.placed:
        return []
    waiting = [m for m in fleet.members.values() if m.standing is Standing.READY and m.node not in placed]
    return [action for member in waiting for action in say_odd(fleet, placed, member)]


def size_words(fleet: Fleet, placed: list[str], world_size: int) -> str:
    """` (3 ranks instead of 4)`, ` (2 nodes instead of 3)`; empty: all as before. world_size: of the attempt before."""
    now, before, ranks = len(placed), len(fleet.placed), first_ranks(fleet, placed)[-1]
    if ranks * before == world_size * now:  # as many a node as ever
        return f" ({now} nodes instead of {before})" if now != before else ""
    if now == before:
        return f" ({_ranks(ranks)} instead of {world_size})"
    return f" ({now} nodes with {_ranks(ranks)} instead of {before} with {world_size})"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"
