"""Captures of device graphs: while one is under way, asking the device for anything breaks it.

CUDA forbids other threads calls such as cudaEventQuery during a capture in its global mode, torch's default: the
capture fails, and training with it (pytorch 104487, 148594). The board says how many are under way, and whoever asks
looks there first. Who is just asking has written that down before: a capture that begins then waits until it is done, a
moment at most. One of the two sees the other, whichever is first.
"""

from __future__ import annotations

import functools
from _thread import allocate_lock
from time import monotonic_ns, sleep

from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.rank.rank import Rank
    from guardrun.hooks.saves.checkpoint_files import Function

READING_NS = 1_500_000_000
"""Longer than the supervisor asks for (supervisor/collect/collectives): one that takes longer has died in it."""
_PAUSE_S = 0.001

_lock = allocate_lock()


def install(module: Any, rank: Rank) -> None:
    """Wrap the graph class of torch.cuda.graphs, which every capture from Python goes through; ROCm's too."""
    graph = module.CUDAGraph
    graph.capture_begin = _wrap_begin(graph.capture_begin, rank)
    graph.capture_end = _wrap_end(graph.capture_end, rank)


def _wrap_begin(original: Function, rank: Rank) -> Function:
    @functools.wraps(original)
    def capture_begin(*args: Any, **kwargs: Any) -> Any:
        rank.has_captured = True
        _count(rank, 1)
        words = rank.words
        while (since_ns := words[Field.READING_NS]) and monotonic_ns() - since_ns < READING_NS:
            sleep(_PAUSE_S)
        if (gate := rank.in_time) is not None:
            gate.wait()
        try:
            return original(*args, **kwargs)
        except BaseException:
            _count(rank, -1)
            raise

    return capture_begin


def _wrap_end(original: Function, rank: Rank) -> Function:
    @functools.wraps(original)
    def capture_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            _count(rank, -1)

    return capture_end


def _count(rank: Rank, change: int) -> None:
    with _lock:
        rank.words[Field.CAPTURES] = max(0, rank.words[Field.CAPTURES] + change)
