"""Loops that go nowhere, over many looks: what never shows a new stack is one, however many places it has.

Two looks cannot tell a loop of a few functions (an event loop that polls, a copy that never ends) from work. Work of
some length shows new stacks, moves bytes or touches memory; a loop shows the same ones over and over.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.rank_activity import (
    BUSY_STACKS,
    FRAMES_CHANGE,
    QUIET_FAULTS_S,
    Judgement,
    RankActivity,
    faults_s,
    own_spots,
    sampled,
)

CLOSED_STACKS = 24
"""Different stacks of functions that a loop may have: an event loop of Python's own has about ten."""
CLOSED_LOOKS = 3
CLOSED_S = 40.0
"""In as many looks, and for as long, next to nothing new of the user's own must have been seen."""
CLOSED_NEW = 1
"""New ones in that time: what a loop does rarely is not in its first looks."""


class SeenStack(msgspec.Struct, kw_only=True):
    """When one stack was seen for the first time, and for the last."""

    first_s: float
    last_s: float


class Loop(msgspec.Struct, kw_only=True):
    """What a rank that uses the CPU has shown since it was last seen to get anywhere."""

    since_s: float
    """Nothing else about it has moved since."""
    looked_s: list[float] = []
    stacks: list[str] = []
    own: dict[str, SeenStack] = {}
    """The same of the user's functions alone: an event loop shows ever other parts of itself, and always the same of
    those that it calls."""
    spots: list[str] = []
    """Lines of the user's own that it was seen in."""

    def look(self, stacks: Iterable[str], own: Iterable[str], at_s: float) -> None:
        """Take in what one look has sampled."""
        self.looked_s = [*self.looked_s, at_s][-(CLOSED_LOOKS + 1) :]
        self.stacks = sorted({*self.stacks, *stacks})[: CLOSED_STACKS + 1]
        for stack in own:
            if stack in self.own:
                self.own[stack].last_s = at_s
            elif len(self.own) <= CLOSED_STACKS:
                self.own[stack] = SeenStack(first_s=at_s, last_s=at_s)

    @property
    def is_small(self) -> bool:
        """So few stacks that it may be a loop."""
        return len(self.stacks) <= CLOSED_STACKS

    def began_s(self, now_s: float) -> float:
        """Since when it has done what it does now: since the first of the stacks of the last CLOSED_S was seen.

        Work before it has left stacks that do not come again.
        """
        first_s = min(s.first_s for s in self.own.values())
        recent_s = min((s.first_s for s in self.own.values() if s.last_s > now_s - CLOSED_S), default=now_s)
        return self.since_s if recent_s <= first_s else recent_s

    def is_closed(self, now_s: float) -> bool:
        """It shows nothing new, and has not for long enough."""
        new = sum(s.first_s > now_s - CLOSED_S for s in self.own.values())
        first_s = min(s.first_s for s in self.own.values())
        is_long = len(self.looked_s) > CLOSED_LOOKS and now_s - first_s >= CLOSED_S
        return is_long and new <= CLOSED_NEW and self.is_small


def over_looks(
    loops: dict[int, Loop], judgement: Judgement, before: RankLook, after: RankLook, unmoved_since_s: float
) -> Judgement:
    """The judgement on a rank that runs, with what earlier looks have shown of it."""
    seems_to_spin = judgement.doing is RankActivity.SPINNING
    is_work = faults_s(before, after) > QUIET_FAULTS_S
    if is_work or not (seems_to_spin or judgement.reason == FRAMES_CHANGE):
        loops.pop(after.global_rank, None)
        return judgement
    loop = loops.setdefault(after.global_rank, Loop(since_s=unmoved_since_s))
    loop.look(sampled(after), sampled(after, is_own=True), after.at_s)
    loop.spots = sorted({*loop.spots, *own_spots(after)})[:CLOSED_STACKS]
    if loop.is_closed(after.at_s):
        seen_s = after.at_s - min(s.first_s for s in loop.own.values())
        reason = f"has been seen in the same {len(loop.stacks)} stacks for {seen_s:.0f} s"
        return msgspec.structs.replace(judgement, doing=RankActivity.SPINNING, reason=reason)
    if seems_to_spin and len(loop.stacks) >= BUSY_STACKS:
        return msgspec.structs.replace(judgement, doing=RankActivity.BUSY, reason="its frames change, slowly")
    return judgement


def may_loop(loops: dict[int, Loop], judged: Iterable[Judgement]) -> bool:
    """Whether all that seem to get anywhere are perhaps in loops: then more looks are worth their price."""
    busy = [j.global_rank for j in judged if j.doing is RankActivity.BUSY]
    return bool(busy) and all(rank in loops and loops[rank].is_small for rank in busy)
