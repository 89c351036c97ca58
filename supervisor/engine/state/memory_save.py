"""What is remembered of memory that runs out, of the run's saves, and of the one that is asked for before it does."""

from __future__ import annotations

from statistics import median

import msgspec

from guardrun.supervisor.engine.model.events import CheckpointSaved
from guardrun.supervisor.engine.model.verdicts import RunsOut

MAX_GAPS = 8
LEAST_GAPS = 2
"""So many show how far apart saves come."""


class SaveTimes(msgspec.Struct, kw_only=True):
    """How far apart a run's saves come, and how long they take. Files of one step are one save, whoever writes them."""

    last: str = ""
    """Which one it was: of which attempt, and in it."""
    last_s: float = 0.0
    gaps_s: list[float] = []
    longest_s: float = 0.0
    costs_s: list[float] = []
    """What each of the last ones took, of the slowest rank."""

    def add(self, event: CheckpointSaved, now_s: float) -> None:
        """Book one."""
        self.longest_s = max(self.longest_s, event.duration_s)
        name = f"{event.attempt} {event.step or event.path}"
        if name == self.last:
            self.costs_s = [*self.costs_s[:-1], max(event.duration_s, *self.costs_s[-1:])]
            return
        self.costs_s = [*self.costs_s, max(0.0, event.duration_s)][-MAX_GAPS:]
        if self.last.startswith(f"{event.attempt} "):
            self.gaps_s = [*self.gaps_s, now_s - self.last_s][-MAX_GAPS:]
        self.last, self.last_s = name, now_s

    @property
    def usual_gap_s(self) -> float:
        """Median seconds between two; 0: not known."""
        return median(self.gaps_s) if len(self.gaps_s) >= LEAST_GAPS else 0.0


class MemorySave(msgspec.Struct, kw_only=True):
    """Of one attempt: nobody knows whether it comes again in the next."""

    outlooks: dict[str, tuple[float, float]] = {}
    """Findings, by key → when nothing is left: the soonest, and at the rate of late."""
    done: list[str] = []
    """Those for which nothing more is asked."""
    key: str = ""
    """The one for which a save is looked out for."""
    request: int = 0
    """Number of that request; 0: there is none."""
    is_quiet: bool = False
    """The ranks were not asked: they have saved by themselves."""
    asked_s: float = 0.0
    until_s: float = 0.0
    """How long it is looked out for."""
    tries: int = 0
    """Requests to the ranks that something has put off."""
    retry_s: float = 0.0
    """Nothing is asked before."""

    def note(self, verdict: RunsOut) -> None:
        """Take in when memory runs out, as seen now."""
        if verdict.soonest_s is None or verdict.usual_s is None:
            self.outlooks.pop(verdict.key, None)
        else:
            self.outlooks[verdict.key] = (verdict.soonest_s, verdict.usual_s)

    def forget(self, key: str) -> None:
        """A finding is over: so is what was asked for it."""
        self.outlooks.pop(key, None)
        if self.key == key:
            self.key, self.request = "", 0

    def put_off(self, until_s: float) -> None:
        """Ask for nothing before that; what was asked is forgotten."""
        self.key, self.request, self.retry_s = "", 0, until_s

    def skip(self, gap_s: float, retry_s: float) -> None:
        """The job stood still for gap_s, and nothing grew."""
        self.outlooks = {key: (one + gap_s, other + gap_s) for key, (one, other) in self.outlooks.items()}
        if self.request:
            self.put_off(retry_s)

    def nearest(self) -> str:
        """The finding by which memory runs out first, of those for which something is still to be done; empty: none."""
        pending = {key: times for key, times in self.outlooks.items() if key not in self.done}
        return min(pending, key=lambda key: (pending[key], key), default="")
