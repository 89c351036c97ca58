"""What to do about memory that runs out, the host's and devices', by what the evidence shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

BUYS_TIME = 'A restart right after a checkpoint buys time: [guards] memory = "save" makes one before memory runs out.'
_KEEPS = (
    "Look for what is kept from step to step: lists of losses or outputs with their graphs (keep `loss.item()`, or "
    "`detach()`), caches without a bound (`lru_cache(maxsize=None)`, dictionaries by sample), metrics never reset."
)
_ALLOCATIONS = (
    "`memray attach PID`, or tracemalloc's snapshots some steps apart, show which lines have allocated it; in C code "
    "jemalloc's or tcmalloc's heap profiles do."
)
_NATIVE = "In C code `memray attach --native PID`, or jemalloc's or tcmalloc's heap profiles show it."
_KEPT = (
    "Look for tensors that are kept from step to step: losses or outputs with their graphs (keep loss.item() or "
    "loss.detach()), lists for metrics or plots, caches by sequence length."
)
_HISTORY = (
    "torch.cuda.memory._record_memory_history() and, some hundred steps later, _dump_snapshot() name the lines of all "
    "that is kept (pytorch.org/memory_viz)."
)
VARIANTS = (
    "Tensors of ever other sizes leave gaps where no other fits: pad lengths to a few sizes, make what lives long "
    "before what is freed in each step, and capture no CUDA graph for each shape."
)
EXPANDABLE = (
    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start; where that isn't supported, "
    "max_split_size_mb:512 keeps large blocks from being split."
)
COLLECTED = (
    "Most of it could be given back as a whole: PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8 gives old "
    "blocks back before the device has none left, and expandable_segments:True has fewer of them."
)


def _names_lines(known: Mapping[str, Any]) -> str:
    """What a person can ask the first of these ranks."""
    first = re.match(r"\d+", str(known.get("ranks", "")))
    return (
        f"`guardctl memory {first[0] if first else 'RANK'}` has tracemalloc (slower steps for a minute) name the lines "
        "of Python that come to hold more, while it trains on."
    )


def host_advice(known: Mapping[str, Any]) -> str:
    """By which part of a rank's memory grows."""
    if known.get("part") == "below":
        return (
            "See what a worker keeps from sample to sample: caches in the data set, open readers, decoded files; lists "
            "of Python objects are copied page by page as they are read (keep them as numpy arrays or tensors). "
            "Without persistent_workers each epoch starts workers anew; fewer of them (num_workers) that load less far "
            f"ahead (prefetch_factor) hold less. {_ALLOCATIONS}"
        )
    if known.get("part") == "shared":
        return (
            "Tensors that DataLoader workers have sent lie in shared memory while they are referred to: clone() what "
            "is kept beyond its step. num_workers times prefetch_factor batches are on their way at a time; buffers "
            "for pin_memory, and files in /dev/shm that nobody deletes, count as well."
        )
    return f"{_KEEPS} {_names_lines(known)} {_NATIVE} {BUYS_TIME}"


def device_advice(known: Mapping[str, Any]) -> str:
    """What stays in tensors."""
    return f"{_KEPT} {_names_lines(known)} {_HISTORY} {BUYS_TIME}"


def fragmentation_advice(known: Mapping[str, Any]) -> str:
    """By what the unused consists of: gaps beside what is in use, or whole segments."""
    whole = known.get("reserved_bytes", 0) - known.get("allocated_bytes", 0) - known.get("inactive_split_bytes", 0)
    return f"{COLLECTED if whole > known.get('stuck_bytes', 0) else EXPANDABLE} {VARIANTS}"
