"""What detectors see of a run: the engine's state, through types that do not let it be changed.

The values are the engine's own, not copies: reading costs nothing, and mypy refuses to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.model.events import Checkpoint, Device, ErrorRecord, Rank, Settings
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.health.base.findings import Finding

DEVICE = "gpu:"


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
    def progress_s(self) -> float:
        """When that last grew; 0 = it has not."""

    @property
    def step(self) -> int:
        """Optimizer steps; 0 where none are seen."""

    @property
    def phase(self) -> str:
        """As the script names it."""

    @property
    def exitcode(self) -> int | None:
        """As subprocess has it; None while it lives."""

    @property
    def exited_s(self) -> float:
        """When it exited; 0 while it lives."""

    @property
    def has_ended(self) -> bool:
        """Its script came to its end."""

    @property
    def error(self) -> ErrorRecord | None:
        """What it raised."""


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
    def fell_s(self) -> float:
        """When the first rank fell by itself; 0 = none has."""

    @property
    def stop_began_s(self) -> float:
        """When it was first ordered to stop; 0 = never."""

    @property
    def step(self) -> int:
        """Furthest step of any rank."""

    @property
    def first_step(self) -> int | None:
        """The first that any rank reported; None: no steps are seen."""

    @property
    def has_progress(self) -> bool:
        """Some rank has advanced."""

    @property
    def progress_s(self) -> float:
        """When anything last advanced, of any rank; 0 = nothing yet."""

    @property
    def advances(self) -> int:
        """How many reports have shown that."""

    @property
    def gap_s(self) -> float:
        """Between the last two of these."""

    @property
    def skipped_to_s(self) -> float:
        """Silence counts from here at the earliest: time before it was nobody's."""

    @property
    def stopped(self) -> Mapping[int, float]:
        """Ranks in T or t: since when they have been seen so."""

    @property
    def waiting(self) -> Mapping[int, float]:
        """Ranks in one and the same collective, or waiting for one batch, for seconds: since when."""

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


class GapsView(Protocol):
    """How far apart progress comes in this run, in seconds."""

    @property
    def typical_s(self) -> float:
        """Most are shorter."""

    @property
    def median_s(self) -> float:
        """Half of them are shorter."""

    def suspicious_after_s(self, floor_s: float) -> float:
        """Silence after which the job deserves a look; at least floor_s."""


class GcPauseView(Protocol):
    """What the detector of garbage collections holds."""

    def key(self, attempt: int, rank: int) -> str:
        """Of the incident that reports a rank's collections in an attempt; empty: there is none."""

    def look_due_s(self, attempt: AttemptView, silence_began_s: float, never_s: float) -> float:
        """When a collection deserves a look."""


class DetectorsView(Protocol):
    """Other detectors, where one's answer depends on another's."""

    @property
    def straggler(self) -> StragglersView:
        """Who is suspected of slowing the others down."""

    @property
    def gc_pause(self) -> GcPauseView:
        """Whose garbage collections hold others up."""

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
    def may_act(self) -> bool:
        """[policy] act allows it, and nobody holds it."""

    @property
    def is_failing(self) -> bool:
        """A rank fell, or the attempt has its verdict."""

    @property
    def verdict(self) -> Incident | None:
        """The incident for which the attempt ends, or has ended; None: none is told."""

    @property
    def verdict_key(self) -> str:
        """The key under which a detector told it; empty: none did."""

    @property
    def avoid(self) -> Sequence[str]:
        """Checkpoints that could not be loaded."""

    @property
    def is_multi_node(self) -> bool:
        """The job has several nodes, each with a clock of its own."""

    @property
    def hosts(self) -> Mapping[str, str]:
        """Nodes of such a job by name and by address, as far as they are known."""

    @property
    def is_node_silent(self) -> bool:
        """Some node of the job is not heard of."""

    @property
    def gaps(self) -> GapsView:
        """How far apart progress comes."""

    @property
    def detectors(self) -> DetectorsView:
        """What others have found so far."""

    def incident_of(self, key: str) -> Incident | None:
        """The incident that was opened for a verdict's key."""


def attempt_of(view: RunView) -> AttemptView:
    """The current attempt, in phases that have one."""
    assert view.attempt is not None
    return view.attempt


def silence_began_s(attempt: AttemptView) -> float:
    """When the job last advanced; the attempt's start before it ever did."""
    return max(attempt.progress_s, attempt.started_s, attempt.skipped_to_s)


def is_near_end(view: RunView) -> bool:
    """Whether a rank's script has come to its end: the others are at most on their way there, or wait for it."""
    return any(
        rank.exitcode == 0 or (rank.has_ended and rank.error is None) for rank in attempt_of(view).ranks.values()
    )


def running_attempt(view: RunView) -> AttemptView | None:
    """The attempt whose ranks train now; None in other phases."""
    return view.attempt if view.phase is Phase.RUNNING else None


def wrong_with(view: RunView, ranks: Sequence[int]) -> list[str]:
    """What is wrong right now with the devices of these ranks, and with their nodes as a whole: a sentence each."""
    return [finding.summary for finding, _ in findings_on(view, ranks)]


def findings_on(view: RunView, ranks: Sequence[int]) -> Iterator[tuple[Finding, list[int]]]:
    """What is wrong right now, each with those of these ranks whose device it is, or whose node as a whole."""
    known = attempt_of(view).ranks
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        if rank in known:
            by_node.setdefault(known[rank].rank.node, []).append(rank)
    for key, finding in view.detectors.node_health.findings.items():
        if finding.subject.startswith(DEVICE):
            concerned = [rank for rank in ranks_on(view, key, finding) if rank in ranks]
        else:
            concerned = by_node.get(key.split("/", 1)[0], [])
        if concerned:
            yield finding, concerned


def ranks_on(view: RunView, key: str, finding: Finding) -> list[int]:
    """Who trains on the part in question; nobody in particular where it is the whole node's. key: `NODE/ID`."""
    if not finding.subject.startswith(DEVICE):
        return []
    assert view.attempt is not None
    node, ranks, devices = key.split("/", 1)[0], view.attempt.ranks, view.detectors.node_health.devices
    on_it = [r for r, device in devices.items() if device.subject == finding.subject and r in ranks]
    # A rank may have moved to another node since: it is not the one that had the device.
    return sorted(r for r in on_it if ranks[r].rank.node == node)
