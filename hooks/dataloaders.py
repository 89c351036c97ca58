"""Batches: how many the training thread got, and since when it has been waiting for the next."""

from __future__ import annotations

import functools
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from guardrun.hooks.board import Field
from guardrun.hooks.rank import Rank

_SINCE, _TOTAL = int(Field.DATA_SINCE_NS), int(Field.DATA_TOTAL_NS)
_BATCHES, _PROGRESS_NS = int(Field.BATCHES), int(Field.PROGRESS_NS)


def install(module: Any, rank: Rank) -> None:
    """Wrap the one `__next__` that all of torch's data loaders share."""
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        words = rank.words
        if words[_SINCE]:  # A loader that reads from another: the outer one counts.
            return original(self)
        if get_ident() != rank.owner_ident:  # Prefetching in a thread: training waits elsewhere, or not at all.
            batch = original(self)
            words[_BATCHES] += 1
            return batch
        began_ns = monotonic_ns()
        words[_SINCE] = began_ns
        try:
            batch = original(self)
        finally:
            ended_ns = monotonic_ns()
            words[_SINCE] = 0
            words[_TOTAL] += ended_ns - began_ns
        words[_BATCHES] += 1
        words[_PROGRESS_NS] = ended_ns
        return batch

    kind.__next__ = __next__
