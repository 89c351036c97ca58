"""What detectors see of a run: the engine's state, through types that do not let it be changed.

The values are the engine's own, not copies: reading costs nothing, and mypy refuses to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.model.events import Checkpoint, Device, Rank, Settings
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.health.base.findings import Finding


class RankView(Protocol):
    """What is known of one rank; fields as RankState has them."""

    @property
    def rank(self) -> Rank:
        """Who it is, and where."""

    @property
    def state(self) -> str:
        """Of its process, as /proc/PID/stat has it."""

    @property
    def progress(self) -> int:
        """Steps, batches, collectives, saves: their sum, which only grows."""

    @property
    def gap_s(self) -> float:
        """Between its last two advances."""

    @property
    def step(self) -> int:
        """Optimizer steps; 0 where none are seen."""

    @property
    def phase(self) -> str:
        """As the script names it."""

    @property
    def exitcode(self) -> int | None:
        """As subprocess has it; None while it lives."""


class AttemptView(Protocol):
    """The current attempt; fields as Attempt has them."""

    @property
    def number(self) -> int:
        """From 0."""

    @property
    def started_s(self) -> float:
        """When its ranks were started."""

    @property
    def resumed_from(self) -> Checkpoint | None:
        """The checkpoint that it was started with."""

    @property
    def ranks(self) -> Mapping[int, RankView]:
        """By global rank."""

    @property
    def alive(self) -> int:
        """Ranks that have not exited."""

    @property
    def step(self) -> int:
        """Furthest step of any rank."""

    @property
    def has_progress(self) -> bool:
        """Some rank has advanced."""

    @property
    def steprate(self) -> StepRateView:
        """How fast it steps."""

    @property
    def collecting(self) -> Mapping[int, float]:
        """Ranks in a garbage collection: since when."""

    @property
    def collected_s(self) -> Mapping[int, float]:
        """Ranks that were seen in one: when it was seen to be over."""


class StepRateView(Protocol):
    """How far the attempt was when."""

    @property
    def times_s(self) -> Sequence[float]:
        """Moments, ascending."""

    @property
    def steps(self) -> Sequence[int]:
        """The furthest step at each."""

    def step_s(self, from_s: float, to_s: float) -> float | None:
        """Median seconds a step between two moments; None where too little is known."""


class NodeHealthView(Protocol):
    """What the detector of nodes' health holds."""

    @property
    def findings(self) -> Mapping[str, Finding]:
        """`NODE/ID`: what is wrong there right now."""

    @property
    def reported(self) -> Mapping[str, str]:
        """`NODE/ID`: key of the incident that reports it."""

    @property
    def devices(self) -> Mapping[int, Device]:
        """By global rank."""


class StragglersView(Protocol):
    """What the straggler detector holds."""

    @property
    def strikes(self) -> Mapping[int, int]:
        """Ranks that are suspected: for how many windows in a row."""

    @property
    def reported(self) -> Mapping[int, str]:
        """Ranks that an open incident names: its key."""


class DetectorsView(Protocol):
    """Other detectors, where one's answer depends on another's."""

    @property
    def straggler(self) -> StragglersView:
        """Who is suspected of slowing the others down."""

    @property
    def node_health(self) -> NodeHealthView:
        """What is wrong with nodes."""


class RunView(Protocol):
    """The whole run."""

    @property
    def phase(self) -> Phase:
        """Where it is."""

    @property
    def settings(self) -> Settings:
        """As the run was opened with."""

    @property
    def attempt(self) -> AttemptView | None:
        """None before the first one."""

    @property
    def incidents(self) -> Mapping[str, Incident]:
        """All of the run, by id, in order."""

    @property
    def is_held(self) -> bool:
        """A person wants nothing changed."""

    @property
    def detectors(self) -> DetectorsView:
        """What others have found so far."""

    def incident_of(self, key: str) -> Incident | None:
        """The incident that was opened for a verdict's key."""


def running_attempt(view: RunView) -> AttemptView | None:
    """The attempt whose ranks train now; None in other phases."""
    return view.attempt if view.phase is Phase.RUNNING else None
