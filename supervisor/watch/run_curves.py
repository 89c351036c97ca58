"""A run's curves as columns, whole or what is new of them: for whoever draws them and keeps what it has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guardrun.supervisor.watch.run_series import Span

COLUMNS = ("at_s", "step_time_s", "loss", "grad_norm", "learning_rate", "resident", "allocated")


def curve_columns(spans: Sequence[Span]) -> list[list[Any]]:
    """A list for each of COLUMNS, all of one length; None: nothing was told in that span."""
    rows = (
        (one.at_s, one.step_time_s(), one.loss, one.grad_norm, one.learning_rate, one.resident, one.allocated)
        for one in spans
    )
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in COLUMNS]


def newer_columns(columns: Sequence[Sequence[Any]], since_s: float) -> list[list[Any]]:
    """Those that began at since_s or later: the last that somebody has may have grown meanwhile."""
    first = next((n for n, at_s in enumerate(columns[0]) if at_s >= since_s), len(columns[0]))
    return [list(column[first:]) for column in columns]
