"""What a benchmark is: an item measures, and returns figures, each with its target where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Protocol


class Effort(str, Enum):
    """How long to measure."""

    QUICK = "quick"
    """Does every measurement work? Its figures say little."""
    NORMAL = "normal"
    """What docs/benchmarks.md is made of."""
    FULL = "full"
    """Also what takes minutes because guardrun is patient for minutes."""


class CannotMeasure(Exception):
    """A measurement could not be made, or what was measured is not what its name says. The text says why."""

    def __init__(self, text: str, figures: Sequence[Figure] = ()) -> None:
        """figures: what the item could measure all the same."""
        super().__init__(text)
        self.figures = figures


@dataclass(frozen=True)
class Target:
    """What a figure should keep to; an upper limit unless it is a floor."""

    limit: float
    is_floor: bool = False

    def is_met(self, value: float) -> bool:
        """Say whether a figure keeps to it."""
        return value >= self.limit if self.is_floor else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.is_floor else '≤'} {self.limit:,.12g}"


@dataclass(frozen=True)
class Figure:
    """One line of the table: the medians of what was measured."""

    name: str
    unit: str
    samples: tuple[float, ...]
    """Under guardrun, in the order in which they were measured; not empty."""
    torchrun: tuple[float, ...] = ()
    """The same under torchrun, where that makes sense."""
    target: Target | None = None
    """For the median of `samples`."""
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def baseline(self) -> float | None:
        return median(self.torchrun) if self.torchrun else None

    @property
    def ratio(self) -> float | None:
        """guardrun's median over torchrun's."""
        return self.value / self.baseline if self.baseline else None

    @property
    def is_missed(self) -> bool:
        return self.target is not None and not self.target.is_met(self.value)


@dataclass(frozen=True)
class Bench:
    """What an item is given."""

    effort: Effort
    say: Callable[[str], None]
    """Progress, for a person."""

    def choose(self, quick: int, normal: int) -> int:
        """How often to do something."""
        return quick if self.effort is Effort.QUICK else normal


class Item(Protocol):
    """One measurement; it may yield several figures."""

    name: str
    """For --only."""
    title: str

    def measure(self, bench: Bench) -> Sequence[Figure]:
        """Measure. Raises CannotMeasure."""
        ...
