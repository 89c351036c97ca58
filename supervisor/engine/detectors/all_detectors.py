"""What a detector is: it observes, and answers with verdicts (engine/model/verdicts.py). All of them, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from guardrun.supervisor.engine.detectors.dataloader_bound import DataloaderBound
from guardrun.supervisor.engine.detectors.descriptor_leak import DescriptorLeak
from guardrun.supervisor.engine.detectors.failure.rank_failure import RankFailure
from guardrun.supervisor.engine.detectors.gc_pause import GcPause
from guardrun.supervisor.engine.detectors.gc_pressure import GcPressure
from guardrun.supervisor.engine.detectors.gpu_fragmentation import GpuFragmentation
from guardrun.supervisor.engine.detectors.gpu_leak import GpuLeak
from guardrun.supervisor.engine.detectors.hang.suspicion import Hang
from guardrun.supervisor.engine.detectors.host_leak import HostLeak
from guardrun.supervisor.engine.detectors.node_health import NodeHealth
from guardrun.supervisor.engine.detectors.numeric.numeric import Numeric
from guardrun.supervisor.engine.detectors.straggler import Straggler
from guardrun.supervisor.engine.detectors.throughput_drop import ThroughputDrop
from guardrun.supervisor.engine.model.run_view import RunView
from guardrun.supervisor.engine.model.verdicts import Verdict
from guardrun.supervisor.engine.observation.hang_finding import LookJudged


class Detector(Protocol):
    """One question about the run. Its fields are its memory: plain data, in every snapshot; nobody else writes them."""

    observes: ClassVar[tuple[type, ...]]
    """What it is asked about: events, or what the engine derives from them (LookJudged, step_times.Window)."""

    def observe(self, event: Any, view: RunView, now_s: float) -> Sequence[Verdict | LookJudged]:
        """Take one of these in, and say what follows."""


class TimedDetector(Detector, Protocol):
    """One that also acts when nothing happens: it observes Ticked, or TickBegan, which come when it has said."""

    def next_deadline_s(self, view: RunView) -> float | None:
        """When it next has something to do; None while only events matter."""


class Detectors(msgspec.Struct, kw_only=True):
    """Each with its memory, which a snapshot holds. They are asked in this order."""

    rank_failure: RankFailure = msgspec.field(default_factory=RankFailure)
    node_health: NodeHealth = msgspec.field(default_factory=NodeHealth)
    gc_pressure: GcPressure = msgspec.field(default_factory=GcPressure)
    straggler: Straggler = msgspec.field(default_factory=Straggler)
    dataloader_bound: DataloaderBound = msgspec.field(default_factory=DataloaderBound)
    throughput_drop: ThroughputDrop = msgspec.field(default_factory=ThroughputDrop)
    gc_pause: GcPause = msgspec.field(default_factory=GcPause)
    descriptor_leak: DescriptorLeak = msgspec.field(default_factory=DescriptorLeak)
    numeric: Numeric = msgspec.field(default_factory=Numeric)
    host_leak: HostLeak = msgspec.field(default_factory=HostLeak)
    gpu_leak: GpuLeak = msgspec.field(default_factory=GpuLeak)
    gpu_fragmentation: GpuFragmentation = msgspec.field(default_factory=GpuFragmentation)
    hang: Hang = msgspec.field(default_factory=Hang)

    def observers(self, kind: type) -> list[Detector]:
        """Those that want to see what is of this kind."""
        return [getattr(self, name) for name in _OBSERVERS.get(kind, ())]

    def next_deadline_s(self, view: RunView) -> float | None:
        """When the first of them has something to do."""
        timed: list[TimedDetector] = [getattr(self, name) for name in _TIMED]
        times = [detector.next_deadline_s(view) for detector in timed]
        return min((at_s for at_s in times if at_s is not None), default=None)


def _observers() -> dict[type, list[str]]:
    found: dict[type, list[str]] = {}
    for name in Detectors.__struct_fields__:
        for kind in type(getattr(Detectors(), name)).observes:
            found.setdefault(kind, []).append(name)
    return found


_OBSERVERS = _observers()
"""What is observed: names of fields."""
_TIMED = [name for name in Detectors.__struct_fields__ if hasattr(getattr(Detectors(), name), "next_deadline_s")]
