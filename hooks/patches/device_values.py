"""Single numbers that training computes, on the host or on a device, without waiting for the device.

A number on a device is copied into pinned memory in that device's current stream, and an event is recorded behind it:
once that says it is done, the number is there. (The current device may be another: not every script sets it.) Nothing
is ever waited for, and nothing is asked while a graph is captured. Where there is no pinned memory, a copy would wait:
such a device is left alone.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

SHARE = 0.002
"""Of a step's time, that copying may cost the host."""
MAX_EVERY = 64
SLOTS = 128
"""Numbers of one type that may be on their way, or have not been read."""

_CAPTURES = int(Field.CAPTURES)


class NoRoom(Exception):
    """So many numbers are on their way that this one could only take the place of another."""


class Copy:
    """A number on its way. Its place is free again once nobody has the object any more."""

    __slots__ = ("_free", "_place")

    def __init__(self, free: list[tuple[Any, Any]]) -> None:
        """Take a place, its slot and its event, out of those that are free. Raises NoRoom."""
        self._free = free
        try:
            self._place = free.pop()
        except IndexError:
            raise NoRoom from None

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._free.append(self._place)

    def start(self, tensor: Any) -> None:
        """Launch the copy of a tensor with one number."""
        slot, event = self._place
        detached = tensor.detach()  # else the copy would be part of a graph
        slot.copy_(detached.reshape(()) if detached.dim() else detached, non_blocking=True)
        event.record(stream_of(tensor.device))

    def is_here(self) -> bool:
        """Whether it can be read."""
        return bool(self._place[1].query())

    def __float__(self) -> float:
        return float(self._place[0].item())


Value = float | Copy


def stream_of(device: Any) -> Any:
    """The stream in which what is launched on a device goes. Raises where torch knows none."""
    return sys.modules["torch"].accelerator.current_stream(device)


def make_places(torch: Any, device: Any, dtype: Any) -> list[tuple[Any, Any]]:
    """Slots in pinned memory for numbers of one type on one device, each with an event.

    Raises RuntimeError where none is pinned, and whatever `stream_of` does.
    """
    stream_of(device)
    # The script may have another default device.
    memory = torch.empty(SLOTS, dtype=dtype, device="cpu", pin_memory=True)
    return [(memory[index], torch.Event(device.type)) for index in range(SLOTS)]


class DeviceValues:
    """Reads one rank's numbers."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._kinds: tuple[type, ...] = ()
        """Types whose numbers are read; empty until something is to be read."""
        self.is_used = False
        """Something was on a device."""
        self._free: dict[tuple[Any, Any], list[tuple[Any, Any]]] = {}
        """By device and type of number: places that are free. An event belongs to the device it was recorded on."""
        self._left_alone: set[str] = set()
        """Types of devices that cannot be read without waiting."""
        self._every = 1
        self._left_out = 0
        """Steps since one was read."""
        self._cost_ns = 0
        """Of the step under way."""
        self._began_ns = 0
        self.unread = 0
        """Steps of which numbers were left out."""
        self._is_left_out = False

    def read(self, given: Any) -> Value | None:
        """A number, or a tensor with one; None where that can't be told without waiting.

        Raises NoRoom where others would have to be read first; and may raise anything.
        """
        kinds = self._kinds
        # Subclasses (fake, functional, distributed tensors) may do anything when they are asked.
        if type(given) not in kinds:
            if isinstance(given, float | int):
                return float(given)
            if kinds or "torch" not in sys.modules:
                return None
            torch = sys.modules["torch"]
            self._kinds = (torch.Tensor, torch.nn.Parameter)
            return self.read(given)
        if given.numel() != 1 or given.is_complex():
            return None
        if given.is_cpu:
            return float(given.item())
        kind = given.device.type
        if kind == "meta" or kind in self._left_alone or self._rank.words[_CAPTURES]:
            return None
        self.is_used = True
        if self._left_out < self._every - 1:
            self._is_left_out = True
            return None
        began_ns = monotonic_ns()
        copy = self._start(kind, given)
        self._cost_ns += monotonic_ns() - began_ns
        return copy

    def _start(self, kind: str, tensor: Any) -> Copy | None:
        key = tensor.device, tensor.dtype
        free = self._free.get(key)
        if free is None:
            try:
                free = self._free[key] = make_places(sys.modules["torch"], *key)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                self._left_alone.add(kind)
                self._rank.note("metrics", f"losses on {kind} are not read: {type(error).__name__}: {error}")
                return None
        copy = Copy(free)
        copy.start(tensor)
        return copy

    def on_step(self) -> None:
        """A training step is done: how many are to be left out follows from what this one has cost."""
        now_ns = monotonic_ns()
        took_ns, self._began_ns = now_ns - self._began_ns, now_ns
        if self._is_left_out:
            self.unread += 1
            self._is_left_out = False
        if not self._cost_ns:
            self._left_out += 1
            return
        every = 1 + int(self._cost_ns / (SHARE * max(took_ns, 1)))
        self._every = min(every, 2 * self._every, MAX_EVERY)  # once, chance may have cost it much
        self._cost_ns = self._left_out = 0
