"""A row of the table of faults: what fails, how, when, and the story in which it does.

A story plays the fault and asserts what must hold; it answers what was seen beside that, in a few words or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.faults.bed import Bed
from tests.fleet_runs.jobs import Job

PARTS = ("supervisor", "launcher", "agent", "head", "link", "disk", "clock")


class BedStory(Protocol):
    """On one node."""

    @property
    def holds(self) -> str: ...

    def __call__(self, bed: Bed) -> str: ...


class JobStory(Protocol):
    """On several nodes."""

    @property
    def holds(self) -> str: ...

    def __call__(self, job: Job) -> str: ...


@dataclass(frozen=True)
class Row:
    part: str
    """One of PARTS."""
    fault: str
    moment: str
    story: BedStory | JobStory
    real: tuple[str, ...] = ()
    """Real parts of the machine that it needs (tests/support/real.py)."""
    is_sample: bool = field(default=False, kw_only=True)
    """Is also played by `make test`."""

    @property
    def name(self) -> str:
        """Names it among all rows."""
        return re.sub(r"\W+", "-", f"{self.part} {self.fault} {self.moment}".lower()).strip("-")

    @property
    def is_of_several_nodes(self) -> bool:
        return "netns" in self.real


def nothing(bed: Bed) -> str:
    """A fault that is there from the beginning: its story's preparation has made it."""
    return ""


BedFault = Callable[[Bed], str]
"""Plays the fault in a living training; answers what was seen."""
JobFault = Callable[[Job], str]
Preparation = Callable[[Bed], None]
"""What is laid out before the training starts."""
