"""What to do about device memory that runs out, by what the evidence shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUYS_TIME = 'A restart right after a checkpoint buys time: [guards] memory = "save" makes one before memory runs out.'
KEPT = (
    "Look for tensors that are kept from step to step: losses or outputs with their graphs (keep loss.item() or "
    "loss.detach()), lists for metrics or plots, caches by sequence length. torch.cuda.memory._record_memory_history() "
    "and, some hundred steps later, _dump_snapshot() name the lines (pytorch.org/memory_viz). "
    f"{BUYS_TIME}"
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


def fragmentation_advice(known: Mapping[str, Any]) -> str:
    """By what the unused consists of: gaps beside what is in use, or whole segments."""
    whole = known.get("reserved_bytes", 0) - known.get("allocated_bytes", 0) - known.get("inactive_split_bytes", 0)
    return f"{COLLECTED if whole > known.get('stuck_bytes', 0) else EXPANDABLE} {VARIANTS}"
