"""Which samples each step of scripts/once.py is computed from: as its sampler has them, and as it came to be."""

from __future__ import annotations

from pathlib import Path

from torch.utils.data import DistributedSampler

BATCH = 4
Step = tuple[int, list[int]]
"""The epoch, and the samples of one rank."""


def undisturbed(rank: int, samples: int, epochs: int) -> list[Step]:
    """Step by step, of one of two ranks, where nothing is ever done again."""
    sampler: DistributedSampler[int] = DistributedSampler(range(samples), 2, rank)  # type: ignore[arg-type]
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = list(sampler)
        found += [(epoch, order[at : at + BATCH]) for at in range(0, len(order) - BATCH + 1, BATCH)]
    return found


def trained(folder: Path, rank: int) -> list[Step]:
    """By the last attempt that did each step."""
    steps: dict[int, Step] = {}
    for line in (folder / f"trained-{rank}").read_text().splitlines():
        _, step, epoch, samples = line.split()
        steps[int(step)] = int(epoch), [int(one) for one in samples.split(",")]
    return [steps[step] for step in sorted(steps)]
