"""Many numbers of one step, on the host or on devices, read without waiting for a device.

Those of one device and type are put together there, and copied into pinned memory in the stream that computes them; an
event behind that says when they are there. As single numbers are (hooks/patches/device_values.py).
"""

from __future__ import annotations

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Vector:
    """Numbers on their way."""

    def __init__(self, torch: Any, numbers: Sequence[Any]) -> None:
        """Launch the copies. numbers: tensors of one number each.

        Raises what torch does, also where a device's memory has no pinned counterpart: a copy would wait there.
        """
        self._count = len(numbers)
        kinds: dict[tuple[Any, Any], list[int]] = {}
        for place, number in enumerate(numbers):
            kinds.setdefault((number.device, number.dtype), []).append(place)
        self._parts: list[tuple[list[int], Any, Any]] = []
        """Places, a tensor on the host, and the event after which it holds their numbers; None: it does."""
        with torch.no_grad():
            for (device, dtype), places in kinds.items():
                whole = torch.stack([numbers[place].reshape(()) for place in places])
                if device.type == "cpu":
                    self._parts.append((places, whole, None))
                    continue
                pinned = torch.empty(len(places), dtype=dtype, device="cpu", pin_memory=True)
                event = torch.Event(device.type)
                pinned.copy_(whole, non_blocking=True)
                event.record(torch.accelerator.current_stream(device))
                self._parts.append((places, pinned, event))

    def is_here(self) -> bool:
        """Whether they can be read."""
        return all(event is None or event.query() for _, _, event in self._parts)

    def read(self) -> list[float]:
        """The numbers, in the order in which they were given."""
        found = [0.0] * self._count
        for places, numbers, _ in self._parts:
            for place, number in zip(places, numbers.tolist(), strict=True):
                found[place] = float(number)
        return found
