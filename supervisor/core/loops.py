"""Loops that go nowhere, over many looks: what never shows a new stack is one, however many places it has.

Two looks cannot tell a loop of a few functions (an event loop that polls, a copy that never ends) from work. Work of
some length shows new stacks, moves bytes or touches memory; a loop shows the same ones over and over.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.core.judge import (
    BUSY_STACKS,
    FRAMES_CHANGE,
    QUIET_FAULTS_S,
    Doing,
    Judgement,
    faults_s,
    sampled,
)
from guardrun.supervisor.core.looks import RankLook

CLOSED_STACKS = 24
"""Different stacks of functions that a loop may have: an event loop of Python's own has about ten."""
LEARN_S = 45.0
CLOSED_LOOKS = 3
CLOSED_S = 40.0
"""For as many looks, and as long, nothing new must have been seen."""


class Loop(msgspec.Struct, kw_only=True):
    """What a rank that uses the CPU has shown in a silence."""

    stacks: list[str] = []
    new_s: float = 0.0
    """When a stack was seen for the first time, or memory was touched."""
    looks: int = 0
    """Since then."""
    since_s: float = 0.0
    """Nothing else about it has moved since."""

    @property
    def began_s(self) -> float:
        """From when on it counts as a loop: new stacks at its beginning are only that a few looks do not show all."""
        return self.since_s if self.new_s - self.since_s <= LEARN_S else self.new_s


def over_looks(
    loops: dict[int, Loop], judgement: Judgement, before: RankLook, after: RankLook, unmoved_since_s: float
) -> Judgement:
    """The judgement on a rank that runs, with what earlier looks have shown of it."""
    seems_to_spin = judgement.doing is Doing.SPINNING
    if not seems_to_spin and judgement.reason != FRAMES_CHANGE:
        loops.pop(after.global_rank, None)
        return judgement
    loop = loops.setdefault(after.global_rank, Loop(new_s=after.at_s, since_s=unmoved_since_s))
    stacks = set(sampled(after))
    loop.looks += 1
    if not stacks.issubset(loop.stacks) or faults_s(before, after) > QUIET_FAULTS_S:
        loop.new_s, loop.looks = after.at_s, 0
        loop.stacks = sorted({*loop.stacks, *stacks})[: CLOSED_STACKS + 1]
    is_closed = loop.looks >= CLOSED_LOOKS and after.at_s - loop.new_s >= CLOSED_S
    if is_closed and len(loop.stacks) <= CLOSED_STACKS:
        reason = f"has been seen in the same {len(loop.stacks)} stacks for {after.at_s - loop.new_s:.0f} s"
        return msgspec.structs.replace(judgement, doing=Doing.SPINNING, reason=reason)
    if seems_to_spin and len(loop.stacks) >= BUSY_STACKS:
        return msgspec.structs.replace(judgement, doing=Doing.BUSY, reason="its frames change, slowly")
    return judgement
