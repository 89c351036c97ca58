"""Which ranks are not like the others, and how, for whoever shows many: facts to look at first, and no verdicts.

What holds a run up is judged by the engine (`stall`, incidents); here is only what stands out. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import median, median_low
from typing import NamedTuple

from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.watch.run_series import RankSteps
from guardrun.supervisor.watch.run_status import RankStatus

FINE, NOTE, WARN, BAD = 0, 1, 2, 3
SILENT_S = 15.0
"""Without progress: as long as a stall lasts before it is told ([hang] tell_s)."""
MUTE_S = 10.0
"""Without a beat, which comes once a second; and of a node that is not heard."""
BEHIND = 5
"""Steps."""
SLOWER, SLOWER_S = 1.5, 0.02
"""Work of a step: so many times that of the median rank, and so many seconds more."""
DATA_SHARE, GC_SHARE = 0.3, 0.1


class Odd(NamedTuple):
    """How a rank stands out."""

    tone: int
    score: float
    """Among those of one tone: higher is shown first."""
    why: str


class Typical(NamedTuple):
    """What the ranks of a run are compared with."""

    step: float | None
    work_s: float | None
    culprits: Collection[int]
    """Of a stall, as the engine has it."""


def typical_of(ranks: Iterable[RankStatus], steps: Mapping[int, RankSteps], culprits: Collection[int]) -> Typical:
    """steps: of the ranks of which it is known."""
    done = [rank.step for rank in ranks if rank.step is not None]
    works = [one.work_s for one in steps.values()]
    return Typical(median(done) if done else None, median_low(works) if len(works) > 1 else None, culprits)


def judge(rank: RankStatus, steps: RankSteps | None, typical: Typical) -> Odd:
    """The worst that there is to say of a rank."""
    if rank.global_rank in typical.culprits:
        return Odd(BAD, math.inf, "holds the run up")
    if rank.exitcode:
        return Odd(BAD, 3.0, f"ended: {rank.words()}")
    if rank.exitcode == 0:
        return Odd(FINE, 0.0, "")
    if rank.state in ("T", "t", "Z", "X"):
        return Odd(BAD, 2.0, rank.words())
    silent_s = rank.last_progress_s or 0.0
    if rank.state == "D" and silent_s >= MUTE_S:
        return Odd(BAD, 1.0, f"{rank.words()}, no progress for {duration(silent_s)}")
    return _judge_living(rank, steps, typical, silent_s)


def _judge_living(rank: RankStatus, steps: RankSteps | None, typical: Typical, silent_s: float) -> Odd:
    if (rank.age_s or 0.0) >= MUTE_S:
        return Odd(WARN, 1e6 + (rank.age_s or 0.0), f"its node was heard {duration(rank.age_s or 0.0)} ago")
    if (rank.last_beat_s or 0.0) >= MUTE_S:
        return Odd(WARN, 1e5 + (rank.last_beat_s or 0.0), f"no beat for {duration(rank.last_beat_s or 0.0)}")
    if silent_s >= SILENT_S:
        return Odd(WARN, 1e4 + silent_s, f"no progress for {duration(silent_s)}")
    if rank.loss is not None and not math.isfinite(rank.loss):
        return Odd(WARN, 1e3, f"loss is {rank.loss}")
    if steps is not None and typical.work_s is not None:
        more_s = steps.work_s - typical.work_s
        if steps.work_s >= SLOWER * typical.work_s and more_s >= SLOWER_S:
            ratio = f"{steps.work_s / typical.work_s:.1f} ×" if typical.work_s > 0.001 else duration(more_s) + " over"
            return Odd(WARN, 100.0 + more_s, f"works {ratio} the median")
    if rank.step is not None and typical.step is not None and typical.step - rank.step >= BEHIND:
        return Odd(WARN, typical.step - rank.step, f"{typical.step - rank.step:,.0f} steps behind")
    if (rank.data_share or 0.0) >= DATA_SHARE:
        return Odd(NOTE, 1.0 + (rank.data_share or 0.0), f"{rank.data_share:.0%} of its time waiting for data")
    if (rank.gc_share or 0.0) >= GC_SHARE:
        return Odd(NOTE, rank.gc_share or 0.0, f"{rank.gc_share:.0%} of its time in garbage collections")
    return Odd(FINE, 0.0, "")
