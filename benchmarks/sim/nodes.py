"""The truth about the nodes: which are there, which are bad, and what the head can know of it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.sim.failures import Truth
from guardrun.supervisor.health.base.findings import Finding


@dataclass(eq=False)
class Node:
    """One machine of the cluster."""

    name: str
    number: int
    is_up: bool = True
    """It runs, and can be reached."""
    has_died: bool = False
    """What ran on it when it went is gone; else it comes back with its guardrun."""
    heard_s: float = 0.0
    """When it went: until then the head heard it."""
    is_silent: bool = False
    """The head has been told that it does not hear it."""
    is_closed: bool = False
    """Its connection said so at once when it went."""
    is_muted: bool = False
    """Only the way to the head is interrupted."""
    is_frozen: bool = False
    """Nothing on it runs; it will, as if nothing had been."""
    bad: Truth | None = None
    """It makes attempts fail until it is repaired."""
    bad_s: float = 0.0
    """Since when."""
    finding: Finding | None = None
    """What its sensors have found, and find until it is repaired."""
    told_session: int = -1
    """The head's guardrun that has been told of it."""
    is_touched: bool = False
    """A failure of its own has befallen it since it was last repaired."""
    is_quarantined: bool = False
    quarantines: int = 0
    is_evicted: bool = False
    """The job has left it out, and it has not been repaired since."""
    slow: float = 1.0
    slow_until_s: float = 0.0

    @property
    def is_heard(self) -> bool:
        return self.is_up and not self.is_muted and not self.is_frozen

    @property
    def is_usable(self) -> bool:
        """A scheduler would hand it out."""
        return self.is_up and not self.is_quarantined
