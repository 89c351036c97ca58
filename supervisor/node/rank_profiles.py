"""What ranks of this node have profiled is read, compressed and kept: a process each, which nobody waits for.

The rank has written its trace into the socket folder (hooks/examine/profiling.py). It is gone from there in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.examinations import profile_name
from guardrun.supervisor.collect.profiles.trace_reader import TraceReader
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.rundir.profiles import prune_profiles, trace_name

READ_S = 60.0
"""Then it is ended: 40 MB take three seconds, on a machine that has little to spare for it many more."""

Told = Callable[[dict[str, Any] | None, str], object]
"""Called with what the trace comes to, beside what the rank has told; or with None and why that is nothing."""


@dataclass
class _Read:
    """One trace that is being read."""

    reader: TraceReader
    rank_told: dict[str, Any]
    told: Told
    name: str
    """The compressed trace's, within the run's folder."""
    began_s: float
    """time.monotonic()."""
    is_ending: bool = False


class RankProfiles:
    """Runs on the loop's thread."""

    def __init__(self, node: RankContext) -> None:
        self._node = node
        self._reads: dict[int, _Read] = {}
        """Per global rank."""

    def begin(self, rank: int, attempt: int, number: int, rank_told: dict[str, Any], told: Told) -> str:
        """Have a rank's trace read, which it has just written; empty, or why not, upon which told is not called.

        number: of the request, which names the file.
        """
        node = self._node
        self.forget(rank)
        trace, name = node.sockets / profile_name(attempt, rank), trace_name(number, rank)
        try:
            reader = TraceReader(trace, Path(node.run_dir, name))
        except OSError as error:
            trace.unlink(missing_ok=True)
            return f"its trace can't be read: {error.strerror or error}"
        self._reads[rank] = _Read(reader, rank_told, told, name, time.monotonic())
        return ""

    def forget(self, rank: int) -> None:
        """Nobody wants to know any more."""
        if (read := self._reads.pop(rank, None)) is not None:
            read.reader.end()

    def sample(self) -> None:
        """Once a second: which of them are done."""
        for rank, read in list(self._reads.items()):
            if read.is_ending:
                continue
            if read.reader.poll() is not None:
                self._end(rank, read)
            elif time.monotonic() - read.began_s > READ_S:
                del self._reads[rank]
                read.reader.end()
                read.told(None, f"its trace was not read within {READ_S:.0f} s")

    def close(self) -> None:
        """End those that are under way; nobody is told."""
        for rank in list(self._reads):
            self.forget(rank)

    def _end(self, rank: int, read: _Read) -> None:
        read.is_ending = True
        run_dir = self._node.run_dir

        def job() -> None:
            told, why = None, ""
            try:
                breakdown, size, trouble = read.reader.read()
                told = {
                    **read.rank_told,
                    "breakdown": msgspec.to_builtins(breakdown),
                    "trace": "" if trouble else read.name,
                    "trace_folder": str(run_dir),
                    "trace_bytes": size,
                    "trace_trouble": trouble,
                }
            except ValueError as error:
                why = str(error)
            except Exception as error:  # whatever it is, whoever asked must not wait for ever
                why = f"{type(error).__name__}: {error}"
            with suppress(OSError):
                prune_profiles(run_dir)
            self._node.post(lambda: self._answer(rank, read, told, why))

        with suppress(RuntimeError):  # closing
            self._node.pool.submit(job)

    def _answer(self, rank: int, read: _Read, told: dict[str, Any] | None, why: str) -> None:
        if self._reads.get(rank) is not read:
            return  # closed
        del self._reads[rank]
        read.reader.end()
        read.told(told, why)
