"""What torch's samplers tell of themselves. Others' are not asked: they may take long, or count what they are asked."""

from __future__ import annotations

import sys
from typing import Any

from guardrun.hooks.wire.samples_page import Flag


def describe_sampler(sampler: Any) -> tuple[int, int, int]:
    """Batches of a whole pass (-1: not known), a DistributedSampler's epoch (-1: there is none), and Flag's bits.

    Only samplers of torch's own kinds are asked how long they are: others' may take long to say, or count what they
    are asked.
    """
    data = sys.modules.get("torch.utils.data")
    distributed = getattr(data, "DistributedSampler", None)
    if distributed is None:
        return -1, -1, 0
    inner = getattr(sampler, "sampler", None)
    plain = (distributed, data.RandomSampler, data.SequentialSampler, data.SubsetRandomSampler)  # type: ignore[union-attr]
    is_known = type(sampler) is data.BatchSampler and type(inner) in plain  # type: ignore[union-attr]
    length = len(sampler) if is_known else -1
    if not isinstance(inner, distributed):
        return length, -1, 0
    epoch, shuffles = inner.epoch, inner.shuffle is True and type(inner).__iter__ is distributed.__iter__
    return length, epoch if type(epoch) is int and epoch >= 0 else -1, int(Flag.SHUFFLES) if shuffles else 0


def has_state(loader: Any) -> bool:
    """Whether a loader, or a sampler of it, has a state of its own that a script may load."""
    parts, one = [loader], loader
    for name in ("batch_sampler", "sampler", "sampler", "sampler"):
        inner = getattr(one, name, None)
        if inner is None:
            continue
        parts.append(inner)
        one = inner
    parts.append(getattr(loader, "sampler", None))
    return any(hasattr(type(part), "load_state_dict") for part in parts)


def has_random_passes(sampler: Any) -> bool:
    """Whether each pass has an order of its own, as torch's default generator gives it."""
    data: Any = sys.modules.get("torch.utils.data")
    for _ in range(4):
        if data is not None and type(sampler) is data.RandomSampler:
            return sampler.generator is None
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False
