"""A rank whose allocator can't use what it has of the device: `memory`, cause `gpu_fragmentation`.

The allocator keeps what is freed, and hands it out again where a new tensor fits. Where none fits, it takes more of the
device. Once that has none, it gives back what is unused as a whole (`num_alloc_retries` counts that), which waits for
the device, and all goes on. What lies beside something in use it can't give back (`inactive_split_bytes`): if that is
too much, memory is out though much of it is unused. Unused here is what is reserved beyond the most that tensors have
ever had at a time: a step's own ups and downs are no part of it. That it grows alone harms nobody.

It is told if one of these holds:

- what is unused and can't be given back grows on and on, is GAPS of the limit, and is half or more of what the room
  that is left shrinks by (detectors/growing.py);
- the device had no memory left again and again: RETRIES times, in windows one after the other, though UNUSED of the
  limit was never in use.
"""

from __future__ import annotations

from typing import Any, ClassVar

from guardrun.supervisor.engine.detectors.device_growing import DeviceGrowing
from guardrun.supervisor.engine.detectors.growing import (
    CONFIDENCE,
    MAX_CULPRITS,
    range_words,
    span_words,
)
from guardrun.supervisor.engine.failures.cuda_memory import size
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth, Held
from guardrun.supervisor.engine.observation.memory_trend import find_trend
from guardrun.supervisor.engine.observation.window_lows import LENGTHS

CAUSE = "gpu_fragmentation"
PART = "stuck"
GAPS = 0.05
UNUSED = 0.15
"""Shares of the limit."""
RETRIES = 6
RETRY_PLACES = (0, 1)
"""In LENGTHS, of windows in which they are looked for: those of minutes. What happens once an hour costs little."""


class GpuFragmentation(DeviceGrowing, kw_only=True):
    """Whose allocator can't use what it has."""

    observes: ClassVar[tuple[type, ...]] = (ev.NodeReport,)

    def _judge(self, rank: int, held: Held, attempt: AttemptView, now_s: float, shortest_s: float) -> list[Verdict]:
        use, verdicts = self.use[rank], list[Verdict]()
        counts, beside = {PART: self._stuck(rank)}, {"retries": use.retries}
        for place in held.add(counts, use.limit - use.reserved, now_s, shortest_s, beside):
            for key, left in self.ended(rank, place):
                text = f"{who(attempt, [rank])} has no more than {size(MIB * left)} of its device in gaps"
                verdicts.append(Over(key=key, text=text))
            verdicts += self._judge_windows(rank, place, attempt, now_s, shortest_s)
        return verdicts

    def _needed(self, rank: int) -> int:
        """The most that its tensors have had at a time, in bytes."""
        use = self.use[rank]
        return max(use.peak, use.allocated + self.needs[rank].most)

    def _stuck(self, rank: int) -> int:
        """Bytes that it can neither use nor give back."""
        use = self.use[rank]
        return max(0, min(use.inactive, use.reserved - self._needed(rank)))

    def _judge_windows(
        self, rank: int, place: int, attempt: AttemptView, now_s: float, shortest_s: float
    ) -> list[Verdict]:
        held, use = self.held[rank], self.use[rank]
        growth = self.find(rank, place, use.limit, shortest_s)
        if growth is not None and MIB * held.lows[PART][place].closed[-1] >= GAPS * use.limit:
            return [self._growing(rank, growth, place, attempt, now_s)]
        # Unused is what there was when the device had none left: all but what tensors needed.
        if rank in self.known or self.are_enough or use.limit - self._needed(rank) < UNUSED * use.limit:
            return []
        again = find_trend(held.lows["retries"][place], RETRIES) if place in RETRY_PLACES else None
        if again is None:
            return []
        key = self.book(CAUSE, [rank], place, "retries", again.risen)
        window_s = shortest_s * LENGTHS[place]
        known = {
            "new_retries": again.risen,
            "window_s": round(again.windows * window_s, 1),
            "onset_s": max(0.0, now_s - (again.windows + 1) * window_s),
        }
        summary = (
            f"{who(attempt, [rank])} had no device memory left {again.risen} times in "
            f"{span_words(again.windows * window_s)}, until what it didn't use was given back: its tensors never had "
            f"more than {size(self._needed(rank))} of {size(use.limit)} at the same time."
        )
        return [self._detected(key, [rank], rank, summary, known)]

    def _growing(self, lead: int, growth: Growth, place: int, attempt: AttemptView, now_s: float) -> Detected:
        rising, ranks = self.rising_with(lead, PART, place)
        key = self.book(CAUSE, ranks, place, PART, rising[lead].risen)
        known = self.describe(lead, PART, growth, growth.rate(lead), now_s)
        use, verb = self.use[lead], "loses" if len(ranks) == 1 else "each lose"
        summary = (
            f"{who(attempt, ranks[:MAX_CULPRITS])} {verb} {size(known['per_hour_bytes'])} of device memory every hour "
            f"to gaps between what is in use: the limit of {size(use.limit)} is reached in "
            f"{range_words(*known['left_range_s'])}, with {size(self._stuck(lead))} of {size(use.reserved)} in gaps."
        )
        known = {"rise_bytes": MIB * rising[lead].risen, **known}
        return self._detected(key, ranks, lead, summary, known)

    def _detected(self, key: str, ranks: list[int], lead: int, summary: str, known: dict[str, Any]) -> Detected:
        onset_s = known.pop("onset_s")
        use = self.use[lead]
        evidence: dict[str, Any] = {
            "ranks": rank_list(ranks),
            "limit_bytes": use.limit,
            "device_bytes": use.total,
            "reserved_bytes": use.reserved,
            "allocated_bytes": use.allocated,
            "needed_bytes": self._needed(lead),
            "unused_bytes": max(0, use.reserved - self._needed(lead)),
            "stuck_bytes": self._stuck(lead),
            "inactive_split_bytes": use.inactive,
            "segments": use.segments,
            "retries": use.retries,
            "ooms": use.ooms,
            **known,
        }
        return Detected(
            key=key,
            kind="memory",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=summary,
            culprits=ranks[:MAX_CULPRITS],
            onset_s=onset_s,
            evidence=evidence,
        )
