"""Which tensors there are, by device, type and shape: what a line keeps for which Python's figures show small objects.

All objects that the collector knows are gone through, 0.15 s a million of them, with the GIL held from the first to the
last: the whole of it is one call of C functions, so that no other thread runs meanwhile, and none of them lives longer
for it. Only numbers come out: a tensor that was held on to for a moment could be the one for which there is no room.

Parameters, and subclasses of Tensor, are left out. So is what only C++ holds: activations that a graph has saved.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import repeat
from operator import attrgetter, is_
from time import monotonic_ns, thread_time_ns

from guardrun.hooks.examine.collector_objects import objects_by_type
from guardrun.hooks.examine.growth import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.examine.growth import Sums

MAX_NS = 500_000_000
"""Of CPU time: a count that has taken more was the last, as many objects as that are not gone through again."""
MAX_SHAPES = 8

_LOOK = attrgetter("device", "dtype", "shape")


class Tensors:
    """Counts of a while, and what is more at its end: the lesser of two numbers there, so that no batch is among it."""

    def __init__(self) -> None:
        self._before: Sums[Any] | None = None
        self._after: Sums[Any] | None = None
        self.took_ns = 0
        self.trouble = ""
        """Why they are not known."""

    def count(self, is_after: bool) -> None:
        """Count those that are there now."""
        torch = sys.modules.get("torch")
        if self.trouble or torch is None or not hasattr(torch, "Tensor"):
            return
        began_ns, computed_ns = monotonic_ns(), thread_time_ns()
        try:
            found = count_tensors(torch)
        except Exception as error:  # a tensor that has no shape, or no data
            self.trouble = f"{type(error).__name__}: {error}"[:200]
            return
        self.took_ns += monotonic_ns() - began_ns
        if thread_time_ns() - computed_ns > MAX_NS:
            self.trouble = "there are too many objects to look for tensors among them"
        elif not is_after:
            self._before = found
        else:
            self._after = found if self._after is None else merge(self._after, found, min)

    def describe(self) -> list[dict[str, Any]]:
        """Those of which there are more, most bytes first."""
        if self.trouble or self._before is None:
            return []
        more = []
        for key, (size, count) in (self._after or {}).items():
            was = self._before.get(key, (0, 0))
            if count > was[1]:
                device, dtype, shape = key
                more.append((size - was[0], count - was[1], str(device), str(dtype), list(shape)))
        more.sort(key=lambda one: (-one[0], -one[1], one[2:]))
        names = ("bytes", "tensors", "device", "dtype", "shape")
        return [dict(zip(names, one, strict=True)) for one in more[:MAX_SHAPES]]


def count_tensors(torch: Any) -> Sums[Any]:
    """Bytes and numbers, by device, type and shape. Raises whatever a tensor's getters raise."""
    count_elements: Any = sys.modules["_collections"]._count_elements  # what Counter counts with
    counts: dict[Any, int] = {}
    tensors = objects_by_type(is_, repeat(torch.Tensor))
    try:
        count_elements(counts, map(_LOOK, tensors))
    except BaseException:
        deque(tensors, 0)
        raise
    sums = {}
    for key, count in counts.items():
        _, dtype, shape = key
        sums[key] = (count * dtype.itemsize * shape.numel(), count)
    return sums
