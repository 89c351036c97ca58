"""What ranks' boards show, read on their own nodes: for whoever asks how the run is doing, and for its summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

MAX_SHARES = 64
"""Ranks whose shares are shown one by one."""


class RankRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank, as its board shows it; what no hooks have written there is None."""

    global_rank: int
    has_hooks: bool = False
    step: int | None = None
    step_time_s: float | None = None
    phase: str = ""
    beat_age_s: float | None = None
    """Since its hooks' own thread last showed that it runs."""
    progress_age_s: float | None = None
    data_share: float | None = None
    """Of the attempt's time: waiting for data."""
    gc_share: float | None = None
    """Of the attempt's time: in collections."""


Shares = dict[int, tuple[float, float]]
"""Per rank, of the attempt's time up to its last progress: waiting for data, and in collections."""


def shares_json(ranks: Shares, untold: Sequence[str] = ()) -> dict[str, Any]:
    """What time was spent on, of all ranks on average and of each; empty where no rank has hooks.

    untold: nodes whose ranks are not among them.
    """
    if not ranks:
        return {}
    mean = [round(sum(share[which] for share in ranks.values()) / len(ranks), 4) for which in (0, 1)]
    shown = {str(number): {"data": data, "gc": gc} for number, (data, gc) in sorted(ranks.items())[:MAX_SHARES]}
    return {"data": mean[0], "gc": mean[1], "ranks": shown, **({"not_told": list(untold)} if untold else {})}
