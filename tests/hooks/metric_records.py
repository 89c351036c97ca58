"""A rank's metrics page, read as the supervisor does."""

from __future__ import annotations

from pathlib import Path

from guardrun.hooks.wire.metrics_page import Head, metrics_name
from guardrun.supervisor.collect.ranks.metrics import MetricsReader, StepRecord


def read_page(sockets: Path, attempt: int = 0, rank: int = 0) -> tuple[list[StepRecord], int]:
    """Its records, and of how many steps it says that nothing was read."""
    reader = MetricsReader(sockets / metrics_name(attempt, rank))
    try:
        records = list(reader.records())
        head = reader.head()
        return records, head[Head.UNREAD] if head is not None else 0
    finally:
        reader.close()
