"""A whole run of the benchmarks, as it is written and shown."""

from __future__ import annotations

import msgspec

from benchmarks.item import Figure
from benchmarks.machine import Machine


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An item that could not be measured."""

    item: str
    reason: str


class Report(msgspec.Struct, kw_only=True):
    """What build/bench.json holds."""

    schema: int = 1
    machine: Machine
    command: str
    took_s: float = 0.0
    figures: list[Figure] = []
    failures: list[Failure] = []
