"""A rank that comes to hold more and more of its device: `memory`, cause `gpu_leak`.

Counted is what its allocator says is in tensors once a step is done, and activations are gone. What a step needs beyond
that, an evaluation's larger ones too, is no room for what stays. detectors/growing.py says which growth is told.

Ranks that share a device count together. A script's leak is mostly one of all ranks: those that grow alike are named
together, whatever their devices, each once a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from guardrun.supervisor.engine.detectors.growing import CONFIDENCE, MAX_CULPRITS, Growing, range_words
from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.device_pools import StepNeed, pool_of
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth

CAUSE = "gpu_leak"
PART = "allocated"


class GpuLeak(Growing, kw_only=True):
    """Whose device memory becomes more and more."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)
    use: dict[int, ev.DeviceMemory] = msgspec.field(default_factory=dict)
    """Newest, of each rank."""
    needs: dict[int, StepNeed] = msgspec.field(default_factory=dict)

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what a node's ranks hold."""
        reports = [report for report in event.ranks if report.device_memory is not None]
        attempt = running_attempt(view) if reports else None
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.begin(attempt):
            self.use, self.needs = {}, {}
        shortest_s = view.settings.memory_window_s
        verdicts: list[Verdict] = []
        for report in reports:
            rank, use = report.global_rank, report.device_memory
            if use is None:
                continue
            held = self.holder(rank, pool_of(event.node, rank, use), report.step, attempt, now_s)
            if held is None:
                continue
            self.use[rank] = use
            need = self.needs.setdefault(rank, StepNeed())
            need.add(use)
            held.spare, held.doubt = need.most // MIB, need.doubt // MIB
            for place in held.add({PART: use.allocated}, use.limit - use.allocated, now_s, shortest_s):
                for key, left in self.ended(rank, place):
                    text = f"{who(attempt, [rank])} holds no more device memory than {size(MIB * left)} between steps"
                    verdicts.append(Over(key=key, text=text))
                growth = self.find(rank, place, use.limit, shortest_s)
                if growth is not None:
                    verdicts.append(self._detected(rank, growth, place, attempt, now_s))
        return verdicts

    def _detected(self, lead: int, growth: Growth, place: int, attempt: AttemptView, now_s: float) -> Detected:
        trends = {rank: held.trends(place).get(PART) for rank, held in self.held.items()}
        rising = {rank: trend for rank, trend in trends.items() if trend is not None}
        alike = self.alike({rank: trend.slope.usual for rank, trend in rising.items()})
        ranks = sorted({lead, *alike})
        key = self.book(CAUSE, ranks, place, PART, rising[lead].risen)
        shown = ranks[:MAX_CULPRITS]
        use = self.use[lead]
        known = self.describe(lead, PART, growth, growth.rate(lead), now_s)
        onset_s = known.pop("onset_s")
        evidence: dict[str, Any] = {
            "ranks": rank_list(ranks),
            "limit_bytes": use.limit,
            "device_bytes": use.total,
            "allocated_bytes": use.allocated,
            "step_needs_bytes": self.needs[lead].most or None,
            "reserved_bytes": use.reserved,
            "rise_bytes": MIB * rising[lead].risen,
            **known,
            "grown_bytes": {str(rank): MIB * rising[rank].risen for rank in shown},
        }
        is_one = len(ranks) == 1
        summary = (
            f"{who(attempt, shown)} {'holds' if is_one else 'hold'} {size(evidence['per_hour_bytes'])} more device "
            f"memory every hour{'' if is_one else ' each'}, in tensors that stay from step to step: the limit of "
            f"{size(use.limit)} is reached in {range_words(*evidence['left_range_s'])}."
        )
        return Detected(
            key=key,
            kind="memory",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=summary,
            culprits=shown,
            onset_s=onset_s,
            evidence=evidence,
        )
