"""A rank that comes to hold more and more of its device: `memory`, cause `gpu_leak`.

Counted is what its allocator says is in tensors once a step is done, and activations are gone. What a step needs beyond
that, an evaluation's larger ones too, is no room for what stays. detectors/growing.py says which growth is told.

Ranks that share a device count together. A script's leak is mostly one of all ranks: those that grow alike are named
together, whatever their devices, each once a run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from guardrun.supervisor.engine.detectors.device_growing import DeviceGrowing
from guardrun.supervisor.engine.detectors.growing import CONFIDENCE, MAX_CULPRITS, range_words
from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth, Held

CAUSE = "gpu_leak"
PART = "allocated"


class GpuLeak(DeviceGrowing, kw_only=True):
    """Whose device memory becomes more and more."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)

    def _judge(self, rank: int, held: Held, attempt: AttemptView, now_s: float, shortest_s: float) -> list[Verdict]:
        use, need, verdicts = self.use[rank], self.needs[rank], list[Verdict]()
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
        rising, ranks = self.rising_with(lead, PART, place)
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
