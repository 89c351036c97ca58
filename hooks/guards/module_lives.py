"""Which modules have died: what they give out is all zeros, though something comes in, and it was not so before.

Pure: shares of numbers that are not zero go in, one step at a time, and at most one finding comes out. Most zeros are
none to worry about: half of a ReLU's, a dropout's, those of an expert that no token was sent to. So it takes

- DEAD looks in a row, of steps in which the module was called, after ALIVE at which it was well;
- an input that is alive: where nothing comes in (padding, a mask, an expert's empty share), nothing goes out;
- of gradients, which are zero also where a loss weighs nothing: that what the module gave out is lost on its way. The
  next module of the step that is not as dead has had only zeros for its input: a ReLU that is no module died there.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ALMOST = 1e-5
"""Share of numbers that are not zero, of what is dead. A sparse autoencoder has more, and means it."""
ALIVE = 5
DEAD = 50
"""Looks."""
MAX_NAMED = 8
OUTPUT, GRADIENT = "output", "gradient"


class Life:
    """What one call of a step has been seen to give out, or to be given."""

    __slots__ = ("alive", "dead", "since")

    def __init__(self) -> None:
        self.alive = 0
        """Looks; …"""
        self.dead = 0
        """… and those in a row, up to now, at which it was dead."""
        self.since = 0
        """The step of the first of these."""

    def note(self, step: int, share: float) -> None:
        """Take a look in. share: of numbers that are not zero."""
        if share > ALMOST:
            self.alive, self.dead = self.alive + 1, 0
            return
        if not self.dead:
            self.since = step
        self.dead += 1

    @property
    def has_died(self) -> bool:
        """It was well, and for long has not been."""
        return self.alive >= ALIVE and self.dead >= DEAD


class Lives:
    """Of one place: a module's first, or second, … call in a step."""

    __slots__ = ("gradient", "input", "output")

    def __init__(self) -> None:
        self.input, self.output, self.gradient = Life(), Life(), Life()


class Seen(NamedTuple):
    """One call in one step: shares of numbers that are not zero; None: not known, or too few to go by."""

    lives: Lives
    inputs: float | None
    outputs: float | None
    gradients: float | None
    """Of the output."""
    is_judged: bool = True
    """Its output may be zero for no good reason, as far as is known."""


class Death(NamedTuple):
    """What has died."""

    what: str
    """OUTPUT or GRADIENT."""
    place: int
    """Of the first one, in the step's calls."""
    also: list[int]
    """Places of the others, in order."""
    since: int
    """The first step at which it was seen so; …"""
    looks: int
    """… at so many in a row."""
    alive: int
    """Looks before, at which it was well."""


def judge(step: int, calls: Sequence[Seen]) -> Death | None:
    """Take a step's calls in, in their order."""
    for call in calls:
        if call.inputs is not None:
            call.lives.input.note(step, call.inputs)
    for place, call in enumerate(calls):
        if not call.is_judged or call.outputs is None or call.inputs is None or call.inputs <= ALMOST:
            continue
        call.lives.output.note(step, call.outputs)
        if call.gradients is None or call.outputs <= ALMOST:
            continue
        if call.gradients > ALMOST or _is_lost(calls, place):
            call.lives.gradient.note(step, call.gradients)
        else:
            call.lives.gradient.dead = 0
    for what in (OUTPUT, GRADIENT):
        dead = [place for place, call in enumerate(calls) if _life(call, what).has_died]
        if dead:
            life = _life(calls[dead[0]], what)
            return Death(what, dead[0], dead[1:], life.since, life.dead, life.alive)
    return None


def _life(call: Seen, what: str) -> Life:
    return call.lives.output if what == OUTPUT else call.lives.gradient


def _is_lost(calls: Sequence[Seen], place: int) -> bool:
    """Whether what a call gave out, which has no gradient, came to nothing before the next module."""
    for call in calls[place + 1 :]:
        if call.inputs is not None and call.inputs <= ALMOST:
            return call.lives.input.alive >= ALIVE
        if not call.is_judged and call.outputs is not None and call.outputs <= ALMOST:
            return False
        if call.gradients is not None and call.gradients > ALMOST:
            return False
    return False
