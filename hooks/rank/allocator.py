"""What the allocator of a device says, and its driver: torch.cuda's, torch.xpu's, any other's that tells."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.wire.memory_page import UNKNOWN


def read_stats(module: Any, index: int) -> dict[str, Any] | None:
    """What the allocator of a device says, as torch.cuda.memory_stats has it.

    module: torch.cuda, torch.xpu, … None where it says nothing. Raises whatever an allocator of the script's own does
    that doesn't count.
    """
    # The same as nested tables: a fifth of the time.
    read = getattr(module, "memory_stats_as_nested_dict", None) or getattr(module, "memory_stats", None)
    return read(index) or None if read is not None else None


def pick(stats: dict[str, Any], *names: str) -> int:
    """One of its numbers, nested or flat; 0 where it has none of that name."""
    flat = stats.get(".".join(names))
    if flat is not None:
        return int(flat)
    value: Any = stats
    for name in names:
        value = value.get(name, {})
    return int(value or 0)


def read_free(module: Any, index: int) -> tuple[int, int]:
    """What is free of a device, and what it has; UNKNOWN where its driver doesn't tell."""
    try:
        free, total = module.mem_get_info(index)
    except (AttributeError, RuntimeError):
        return UNKNOWN, UNKNOWN
    return int(free), int(total)


def read_cap(module: Any, index: int, total: int) -> int:
    """What the script lets the allocator reserve at most; UNKNOWN: no less than all, or this torch doesn't tell."""
    read = getattr(module, "get_per_process_memory_fraction", None)
    fraction = float(read(index)) if read is not None else 1.0
    return int(fraction * total) if fraction < 1.0 and total > 0 else UNKNOWN
