"""Has ranks of this node sampled for a while because a person wants to know what they do.

py-spy does it from outside (supervisor/collect/ranks/flame_samples.py): a rank that hangs, holds the GIL or is stopped
is sampled like any other, and need not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from guardrun.supervisor.collect.host.procfs import read_stat, read_threads
from guardrun.supervisor.collect.ranks.flame_samples import Recording, pack
from guardrun.supervisor.node.rank_collection import RankContext

MAX_RATE = 200
"""Samples a second."""
LATE_S = 30.0
"""Beyond the time that was asked for: py-spy reads symbols first, and writes at the end."""

HELD_S = 5.0
"""For native frames all threads are stopped for as long as it takes to stop each of them: with one that stands in the
kernel (a dead mount, a driver) that is for good. A sample takes milliseconds, the first one up to a second or two."""

Told = Callable[[dict[str, Any] | None, str], object]
"""Called with what was seen of a rank, or with None and why that is nothing."""


@dataclass
class _Sampled:
    """One rank that is being sampled."""

    recording: Recording
    told: Told
    number: int
    began_s: float
    """time.monotonic()."""
    seconds: float
    terms: dict[str, Any]
    is_being_read: bool = False
    held_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Of native ones: threads that are stopped, with their counts of switches, and since when."""

    def is_held(self, now_s: float) -> bool:
        """Whether one of its threads has been stopped all the time for HELD_S."""
        threads = read_threads(self.terms["pid"]) if self.terms["native"] else []
        stopped = {(each.tid, each.switches) for each in threads if each.state == "t"}
        self.held_s = {each: self.held_s.get(each, now_s) for each in stopped}
        return any(now_s - since_s > HELD_S for since_s in self.held_s.values())


class RankRecordings:
    """Runs on the loop's thread; what was recorded is read by its pool."""

    def __init__(self, node: RankContext) -> None:
        self._node = node
        self._sampled: dict[int, _Sampled] = {}
        """Per global rank: one at a time."""

    def begin(self, number: int, arguments: dict[str, Any], seconds: float, told: Told) -> str:
        """Have a rank sampled; empty, or why that can't be, upon which told is not called.

        arguments: `rate`, samples a second; `native`: with native frames, for which the rank is paused.
        """
        node = self._node
        rate, native = arguments.get("rate"), arguments.get("native", False)
        if not isinstance(rate, int) or not 1 <= rate <= MAX_RATE or not isinstance(native, bool):
            return f"a rank is sampled 1 to {MAX_RATE} times a second"
        rank = node.ingest.ranks.get(number)
        if rank is None or read_stat(rank.pid) is None:
            return "there is no such rank"
        if (earlier := self._sampled.get(number)) is not None:
            left_s = max(0.0, earlier.began_s + earlier.seconds - time.monotonic())
            return f"it is being sampled already, for {left_s:.0f} s more"
        path = node.sockets / f"flame-{node.ingest.attempt}-{number}.raw"
        try:
            recording = Recording(rank.pid, path, seconds=seconds, rate=rate, native=native)
        except OSError as error:
            return str(error.strerror or error)
        terms = {"pid": rank.pid, "rate": rate, "native": native}
        self._sampled[number] = _Sampled(recording, told, number, time.monotonic(), seconds, terms)
        return ""

    def sample(self) -> None:
        """Once a second: which of them are done."""
        for sampled in list(self._sampled.values()):
            if sampled.is_being_read:
                continue
            if sampled.recording.poll() is not None:
                self._read(sampled)
            elif time.monotonic() - sampled.began_s > sampled.seconds + LATE_S:
                self._end(sampled, why=f"py-spy was not done {LATE_S:.0f} s after the time")
            elif sampled.is_held(time.monotonic()):
                why = "a thread of it stands in the kernel, and native frames would hold up all others"
                self._end(sampled, why=f"{why}: ask without them")

    def close(self) -> None:
        """End those that are under way; nobody is told."""
        for sampled in self._sampled.values():
            sampled.recording.end()
        self._sampled.clear()

    def _read(self, sampled: _Sampled) -> None:
        sampled.is_being_read = True
        took_s = time.monotonic() - sampled.began_s

        def read() -> dict[str, Any]:
            stacks, taken, errors = sampled.recording.read()
            packed, left_out = pack(stacks)
            counts = {"samples": taken, "errors": errors, "left_out": left_out}
            return {**sampled.terms, **counts, "seconds": min(took_s, sampled.seconds), "stacks": packed}

        def job() -> None:
            told, why = None, ""
            try:
                told = read()
            except ValueError as error:
                why = str(error)
            except Exception as error:  # whatever it is, whoever asked must not wait for ever
                why = f"{type(error).__name__}: {error}"
            self._node.post(lambda: self._end(sampled, told, why))

        with suppress(RuntimeError):  # closing
            self._node.pool.submit(job)

    def _end(self, sampled: _Sampled, told: dict[str, Any] | None = None, why: str = "") -> None:
        if self._sampled.pop(sampled.number, None) is None:
            return  # closed
        sampled.recording.end()
        sampled.told(told, why)
