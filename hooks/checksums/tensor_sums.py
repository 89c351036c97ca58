"""One 64-bit number a tensor: the sum of its bits, read as integers. Replicas of a tensor have the same one.

A bit that flips always changes the sum. Tensors are summed as they lie in memory, in any dense layout: only those that
lie alike have the same sum. All of a tensor is read, without a copy of it: integers are summed in their own width, as
another one would have torch convert them first. That is less than what one step of the optimizer reads and writes.

On a device small tensors are joined, CHUNK elements at a time, and summed by one running sum: a few kernels for all
biases and norms. What that needs for a moment is CHUNK times 8 bytes, and as much as the elements have.
"""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank.allocator import pick, read_cap, read_free, read_stats
from guardrun.hooks.wire.memory_page import UNKNOWN

ROOM_BYTES = 64 << 20
"""Of memory that its allocator has and nobody uses; else twice as much that it could get."""
SMALL = 32 * 1024
CHUNK = 1024 * 1024
_MASK = (1 << 64) - 1
_MAX_ENDS = 64


def is_readable(torch: Any, tensor: Any) -> bool:
    """Whether it lies in memory as a dense block, which can be summed as it is."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return False
    return tensor.numel() > 0 and tensor.element_size() <= 8 and (tensor.is_contiguous() or _is_dense(tensor))


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill a block of memory in any order, as in torch.channels_last."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def has_room(torch: Any, device: Any) -> bool:
    """Whether sums on it find room without a flush of what its allocator keeps; also where nobody tells.

    A script that fills its device to the last byte must find that byte.
    """
    module = getattr(torch, device.type, None)
    stats = read_stats(module, device.index) if module is not None and device.type != "cpu" else None
    if not stats:
        return True
    reserved, allocated = (
        pick(stats, "reserved_bytes", "all", "current"),
        pick(stats, "allocated_bytes", "all", "current"),
    )
    if reserved - allocated >= ROOM_BYTES:
        return True
    free, total = read_free(module, device.index)
    cap = read_cap(module, device.index, total)
    return free == UNKNOWN or min(free, cap - reserved if cap != UNKNOWN else free) >= 2 * ROOM_BYTES


class Sums:
    """Sums on their way from one device."""

    def __init__(self, torch: Any, device: Any, joins: bool | None = None) -> None:
        """joins: whether small tensors are joined; None: where the device is not the host."""
        self._torch = torch
        self._device = device
        self._joins = device.type != "cpu" if joins is None else joins
        self.is_pinned = device.type != "cpu"
        self._places: list[tuple[int, bool]] = []
        """Of each number of the result: where it belongs, and whether the one before is to be taken off it."""
        self._result: Any = None
        self._event: Any = None

    def start(self, tensors: list[tuple[int, Any]], ends: dict[tuple[int, ...], Any]) -> None:
        """Launch it all in the current stream. tensors: each with its place. ends: kept from one time to the next."""
        torch = self._torch
        singles: list[Any] = []
        full: list[list[tuple[int, Any]]] = []
        chunks: dict[Any, list[tuple[int, Any]]] = {}
        sizes: dict[Any, int] = {}
        for place, tensor in tensors:
            count = tensor.numel()
            if not self._joins or count > SMALL or tensor.element_size() not in (2, 4):
                singles.append(sum_bits(torch, tensor))
                self._places.append((place, False))
                continue
            dtype = tensor.dtype
            if sizes.get(dtype, 0) + count > CHUNK:
                full.append(chunks.pop(dtype))
                sizes[dtype] = 0
            chunks.setdefault(dtype, []).append((place, tensor))
            sizes[dtype] = sizes.get(dtype, 0) + count
        parts = [torch.stack(singles)] if singles else []
        for chunk in (*full, *chunks.values()):
            parts.append(self._running_sums(chunk, ends))
            self._places += [(place, index > 0) for index, (place, _) in enumerate(chunk)]
        result = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self.is_pinned:
            self._result = torch.empty(result.numel(), dtype=torch.int64, device="cpu", pin_memory=True)
            self._result.copy_(result, non_blocking=True)
            self._event = record_event(torch, self._device)
        else:
            self._result = result

    def _running_sums(self, chunk: list[tuple[int, Any]], ends: dict[tuple[int, ...], Any]) -> Any:
        torch = self._torch
        flat = torch.cat([flatten(tensor) for _, tensor in chunk])
        bits = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32)
        sums = bits.cumsum(0, dtype=torch.int64)
        at, last = [], -1
        for _, tensor in chunk:
            last += tensor.numel()
            at.append(last)
        key = tuple(at)
        index = ends.get(key)
        if index is None or index.device != sums.device:
            if len(ends) >= _MAX_ENDS:
                ends.clear()
            index = torch.tensor(at, dtype=torch.int64, device="cpu", pin_memory=self.is_pinned)
            index = ends[key] = index.to(sums.device, non_blocking=True)
        return sums.index_select(0, index)

    def are_here(self) -> bool:
        """Whether they can be read."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[tuple[int, int]]:
        """Place and sum, from 0 to 2**64 - 1, of each tensor. Only once they are here."""
        found = []
        before = 0
        for (place, is_running), number in zip(self._places, self._result.tolist(), strict=True):
            found.append((place, (number - before if is_running else number) & _MASK))
            before = number
        return found


def record_event(torch: Any, device: Any) -> Any:
    """An event behind what was launched last on a device, which need not be the current one."""
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event
    event = torch.Event(device.type)
    event.record()
    return event


def flatten(tensor: Any) -> Any:
    """Its elements as they lie in memory."""
    if tensor.dim() == 1:
        return tensor
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def sum_bits(torch: Any, tensor: Any) -> Any:
    """The sum of a tensor's bits, as a tensor with one int64: of words of 8 bytes, or of the widest that fit."""
    size, start, flat = tensor.element_size(), tensor.storage_offset(), flatten(tensor)
    for width, kind in ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.int8)):
        if (flat.numel() * size % width == 0 and start * size % width == 0 and width % size == 0) or width == size:
            total = flat.view(kind).sum(dtype=kind)
            return total if width == 8 else total.long()
    raise TypeError(f"elements of {size} bytes")
