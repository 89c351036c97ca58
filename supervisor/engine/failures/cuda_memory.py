"""The CUDA allocator's summary, which an out-of-memory error carries, as data; and what it shows.

The text is made in c10/cuda/CUDACachingAllocator.cpp (`OutOfMemoryError`, the same words from torch 2.1 to 2.13; only
the advice at its end changes). Sizes are rounded by its `format_size`: "bytes", KiB, MiB or GiB, two decimals.
"""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_FIELDS = {
    "tried_bytes": rf"Tried to allocate {_SIZE}",
    "total_bytes": rf"total capacit?y of {_SIZE}",
    "free_bytes": rf"of which {_SIZE} is free",
    "process_bytes": rf"this process has {_SIZE} memory in use",
    "allowed_bytes": rf"{_SIZE} allowed;",
    "allocated_bytes": rf"Of the allocated memory {_SIZE} is allocated by PyTorch",
    "graph_pools_bytes": rf"with {_SIZE} allocated in private pools",
    "reserved_unallocated_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_GPU = re.compile(r"GPU (\d+) has a total")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")

FRAGMENTED_SHARE = 0.1
"""Of what the process holds: so much reserved and unused, and as much as was asked for, is worth a remedy."""
STRANGERS_SHARE = 0.05
"""Of the device's memory, in other processes: worth a look at who they are."""


def parse_memory(message: str) -> dict[str, Any] | None:
    """The summary's figures, those that are there; None where the text holds no summary.

    `other_processes` are [{pid, bytes}], whose pids are those of the outermost pid namespace. In a container the
    driver cannot tell which of them is the rank itself: then `process_bytes` is not there, and one of them may be it.
    """
    found: dict[str, Any] = {}
    for name, pattern in _FIELDS.items():
        if match := re.search(pattern, message):
            found[name] = _bytes(match[1], match[2])
    if "tried_bytes" not in found:
        return None
    if match := _GPU.search(message):
        found["gpu"] = int(match[1])
    found["other_processes"] = [{"pid": int(m[1]), "bytes": _bytes(m[2], m[3])} for m in _OTHER.finditer(message)]
    return found


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number) * _UNITS[unit])
    except ValueError:
        return 0


def is_fragmented(memory: dict[str, Any]) -> bool:
    """Whether what is reserved and unused would have been enough, and is much."""
    unused = memory.get("reserved_unallocated_bytes", 0)
    held = memory.get("process_bytes") or memory.get("allocated_bytes", 0) + unused
    return bool(unused and unused >= memory["tried_bytes"] and unused >= FRAGMENTED_SHARE * held)


def strangers_bytes(memory: dict[str, Any]) -> int:
    """What others than the rank hold of its device; 0 where that can't be told, or is little."""
    total, own = memory.get("total_bytes", 0), memory.get("process_bytes", 0)
    if not own or not total:
        return 0
    seen = sum(other["bytes"] for other in memory["other_processes"])
    # Processes of other containers are not listed, but their memory is gone all the same.
    others = max(seen, total - memory.get("free_bytes", 0) - own)
    return int(others) if others >= STRANGERS_SHARE * total else 0


def is_capped(memory: dict[str, Any]) -> bool:
    """Whether a limit of the script's own (set_per_process_memory_fraction) refused what the device still had."""
    return "allowed_bytes" in memory and memory.get("free_bytes", 0) >= memory["tried_bytes"]


def is_hopeless(memory: dict[str, Any]) -> bool:
    """Whether one allocation alone asks for more than the whole device has."""
    return bool(memory.get("total_bytes")) and memory["tried_bytes"] >= memory["total_bytes"]


def size(size_bytes: float) -> str:
    """`1.5 GB`, as people say it."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size_bytes >= factor:
            text = f"{size_bytes / factor:.1f}"
            return f"{text.removesuffix('.0')} {unit}"
    return f"{size_bytes:.0f} bytes"
