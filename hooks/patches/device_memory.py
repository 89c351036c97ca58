"""What the caching allocator of a rank's device says: how much is allocated and reserved, and in how many pieces.

After an optimizer's step, some four times a minute, by the thread that trains: there activations are gone, and what
stays from step to step is what counts. The allocator's own numbers are copied under its lock, without a look at blocks
or at the device (c10/cuda/CUDACachingAllocator.cpp, getDeviceStats). What the device has left is one call of the driver
(cudaMemGetInfo), which waits for no kernel and takes some 10 µs, on some machines 8 ms: whatever it takes, readings
cost no more than SHARE of the time, once it is known.

Nothing here initialises a device or makes a context: the device is asked only where the rank's allocator holds some
of its memory. Nothing is asked during a capture. The script's own peaks are read, and never reset.
"""

from __future__ import annotations

import os
import struct
import sys
from _thread import get_ident
from time import monotonic_ns
from typing import Any
from zlib import crc32

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.patches.devices import find_devices, read_identity
from guardrun.hooks.rank.allocator import pick, read_cap, read_free, read_stats
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.memory_page import MAGIC, SIZE_BYTES, Word, memory_name

WINDOW_S = 60.0
"""[leaks] memory_window_s, where nobody says it."""
TIMES_A_WINDOW = 4
"""Readings, as the supervisor takes them (supervisor/collect/ranks/sampler.py)."""
FIRST_STEPS = 3
"""Before the first reading: optimizers make their state in the first step, and compilers try in the next ones."""
SHARE = 5e-4
"""Of the time, that readings cost at most."""
COSTS = 3
"""Readings of which the cheapest counts, once there are as many: any single one may have had to wait for a core, and
the first one finds the device, and makes the page."""
MAX_FAILURES = 3
ACCELERATORS = ("cuda", "xpu")
"""Asked whether they are initialised, where parameters don't tell: which asks no driver."""

_CAPTURES, _STEP = int(Field.CAPTURES), int(Field.STEP)
_READING = struct.Struct(f"<{Word.TAIL - Word.STEP}q")
"""From STEP on, up to TAIL."""


class DeviceMemory:
    """Reads one rank's. A step between readings costs one comparison, by whoever calls on_step."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        window_s = float(str(rank.settings.get("memory_window_s") or WINDOW_S))
        self._every_ns = int(1e9 * window_s / TIMES_A_WINDOW)
        self.due_ns = 0
        """CLOCK_MONOTONIC, of the next reading."""
        self._steps_left = FIRST_STEPS
        self._device: tuple[str, int] | None = None
        """Type and index, once it is known that this rank has memory there."""
        self._identity = 0
        self._costs_ns: list[int] = []
        self._count = 0
        self._failures = 0
        self._page: SharedPage | None = None
        """The page, once there is something to write."""

    def on_step(self, optimizer: Any, now_ns: int) -> None:
        """An optimizer has stepped, and a reading is due. Never raises."""
        rank = self._rank
        if get_ident() != rank.owner_ident or rank.words[_CAPTURES]:
            return
        if self._steps_left:
            self._steps_left -= 1
            return
        try:
            self.due_ns = now_ns + self._every_ns
            self._read(sys.modules["torch"], optimizer)
            self._costs_ns = [*self._costs_ns[1 - COSTS :], monotonic_ns() - now_ns]
            if len(self._costs_ns) == COSTS:
                self.due_ns = now_ns + max(self._every_ns, int(min(self._costs_ns) / SHARE))
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                rank.memory = None
                rank.fail("device memory", error)

    def read_allocated(self) -> int | None:
        """Bytes that the allocator has handed out now, for any thread; None unknown. Never raises."""
        if self._device is None or self._rank.words[_CAPTURES]:
            return None
        kind, index = self._device
        try:
            stats = read_stats(getattr(sys.modules["torch"], kind), index)
            return pick(stats, "allocated_bytes", "all", "current") if stats is not None else None
        except Exception:  # an allocator that has been taken away meanwhile
            return None

    def _read(self, torch: Any, optimizer: Any) -> None:
        kind, index = self._device or find_device(torch, optimizer)
        module: Any = getattr(torch, kind, None)
        if index < 0 or module is None:
            return
        if hasattr(module, "is_initialized") and not module.is_initialized():
            return
        stats = read_stats(module, index)
        if stats is None:
            self._rank.memory = None  # an allocator that keeps no numbers
            return
        reserved = pick(stats, "reserved_bytes", "all", "current")
        if reserved <= 0:
            return
        if self._device is None:
            self._device, self._identity = (kind, index), identify(module, index)
        free, total = read_free(module, index)
        self._write(
            self._rank.words[_STEP],
            self._identity,
            pick(stats, "allocated_bytes", "all", "current"),
            pick(stats, "allocated_bytes", "all", "peak"),
            reserved,
            pick(stats, "inactive_split_bytes", "all", "current"),
            pick(stats, "segment", "all", "current"),
            pick(stats, "num_alloc_retries"),
            pick(stats, "num_ooms"),
            total,
            free,
            read_cap(module, index, total),
        )

    def _write(self, *values: int) -> None:
        page = self._page or self._make_page()
        self._count += 1
        words = page.words
        words[Word.HEAD] = 0
        words[Word.TAIL] = self._count
        _READING.pack_into(page.bytes, 8 * Word.STEP, *values)
        words[Word.HEAD] = self._count

    def _make_page(self) -> SharedPage:
        rank = self._rank
        path = os.path.join(rank.sockets, memory_name(rank.attempt, rank.global_rank))
        self._page = SharedPage(path, SIZE_BYTES, MAGIC, rank.pid)
        return self._page

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        if self._page is not None:
            self._page.close()


def find_device(torch: Any, optimizer: Any) -> tuple[str, int]:
    """Type and index of the device that the rank trains on: of its parameters, else torch's current one; -1: none."""
    found = find_devices(optimizer)
    if found:
        return min(found)
    for kind in ACCELERATORS:  # parameters may lie on the host between steps
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            return kind, int(module.current_device())
    return "", -1


def identify(module: Any, index: int) -> int:
    """A number of this very device, whatever its index is in other ranks; 0 where nothing tells it from others."""
    properties = getattr(module, "get_device_properties", None)
    names = "".join(read_identity(properties(index))) if properties is not None else ""
    return crc32(names.encode()) if names else 0


def install(module: Any, rank: Rank) -> None:
    """Read from now on; torch.optim.optimizer, whose steps hooks/patches/optimizer_steps.py hears of."""
    rank.memory = DeviceMemory(rank)
