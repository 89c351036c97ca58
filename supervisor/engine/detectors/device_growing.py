"""What the two detectors of device memory have in common: whose readings are judged, and which ranks grow alike."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.detectors.growing import Growing
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView, running_attempt
from guardrun.supervisor.engine.model.verdicts import Verdict
from guardrun.supervisor.engine.observation.device_pools import StepNeed, pool_of
from guardrun.supervisor.engine.observation.memory_growth import Held
from guardrun.supervisor.engine.observation.memory_trend import Trend


class DeviceGrowing(Growing, kw_only=True):
    """What ranks hold of their devices."""

    use: dict[int, ev.DeviceMemory] = msgspec.field(default_factory=dict)
    """Newest, of each rank."""
    needs: dict[int, StepNeed] = msgspec.field(default_factory=dict)

    def observe(self, event: ev.NodeReport, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what a node's allocators say."""
        reports = [report for report in event.ranks if report.device_memory is not None]
        attempt = running_attempt(view) if reports else None
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.begin(attempt, view.settings):
            self.use, self.needs = {}, {}
        verdicts: list[Verdict] = []
        for report in reports:
            rank, use = report.global_rank, report.device_memory
            if use is None:
                continue
            held = self.holder(rank, pool_of(event.node, rank, use), report.step, attempt, now_s)
            if held is None:
                continue
            self.use[rank] = use
            self.needs.setdefault(rank, StepNeed()).add(use)
            verdicts += self._judge(rank, held, attempt, now_s, view.settings.memory_window_s)
            verdicts += self.outlook(rank, view.settings, now_s)
        return verdicts

    def _judge(self, rank: int, held: Held, attempt: AttemptView, now_s: float, shortest_s: float) -> list[Verdict]:
        """What follows from a rank's reading; held: to what it is to be added."""
        raise NotImplementedError

    def rising_with(self, lead: int, part: str, place: int) -> tuple[dict[int, Trend], list[int]]:
        """Ranks of which a part rises, and those to be named with the one that was found to."""
        trends = {rank: held.trends(place).get(part) for rank, held in self.held.items()}
        rising = {rank: trend for rank, trend in trends.items() if trend is not None}
        return rising, sorted({lead, *self.alike({rank: trend.slope.usual for rank, trend in rising.items()})})
