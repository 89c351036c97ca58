"""A rank of two that goes over loaders of several kinds, one after the other; argv: whether workers are used, too.

Prints as JSON, in order: the name of each training loader that has whole numbers for indices, and those of the first
pass as its sampler handed them out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

SIZE = 400
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([weight], lr=1e-6)
expected: list[tuple[str, list[list[int]]]] = []


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return int(index)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


class Of(Sampler[Any]):
    """Whole numbers in other clothes."""

    def __init__(self, kind: Callable[[int], Any]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return map(self.kind, range(SIZE))

    def __len__(self) -> int:
        raise AssertionError("nobody is asked how long a sampler of the script's own is")


def train(batch: Any, steps: bool = True) -> None:
    (weight * torch.as_tensor(batch).float().mean()).backward()
    if steps:
        optimizer.step()
        optimizer.zero_grad()


def go(name: str, loader: DataLoader[Any], passes: int = 1, *, sets_epoch: bool = False) -> None:
    """Train on it, a batch a step."""
    batches: list[list[int]] = []
    for number in range(passes):
        if sets_epoch:
            loader.sampler.set_epoch(number)  # type: ignore[union-attr]
        for batch in loader:
            train(batch)
            if not number:
                batches.append(torch.as_tensor(batch).reshape(-1).tolist())
    expected.append((name, batches))


def go_otherwise() -> None:
    """What does not count: evaluations, what has no whole numbers, what is broken off."""
    data = Numbers()
    for batch in DataLoader(data, batch_size=4):
        assert len(batch)
    for is_before in (True, False):
        checks = iter(DataLoader(data, batch_size=4))
        for batch in DataLoader(Stream(), batch_size=8):  # an evaluation of a batch beside each step
            if is_before:
                next(checks)
            train(batch)
            if not is_before:
                next(checks)
    for index in (torch.tensor, float):
        for batch in DataLoader(Numbers(), batch_size=4, sampler=Of(index)):
            train(batch)
    for batch in DataLoader(data, batch_sampler=[[1, 2]] * 40):  # type: ignore[arg-type]
        train(batch)
    for number, batch in enumerate(DataLoader(data, batch_size=4)):
        train(batch)
        if number == 20:
            break
    for batch in DataLoader(data, batch_size=100):
        train(batch)


def go_ahead() -> None:
    """A batch is fetched before the one before it is trained on; four are one step."""
    loader = DataLoader(Numbers(), batch_size=4)
    iterator, batches = iter(loader), []
    batch = next(iterator)
    while batch is not None:
        ahead = next(iterator, None)
        train(batch, steps=len(batches) % 4 == 3)
        batches.append(batch.tolist())
        batch = ahead
    expected.append(("fetched ahead, accumulated", batches))


def shares(shuffle: bool = True) -> DistributedSampler[int]:
    return DistributedSampler(Numbers(), num_replicas=2, rank=0, shuffle=shuffle, seed=5)


go_otherwise()
go("set_epoch is never called", DataLoader(Numbers(), batch_size=4, sampler=shares()), 5)
go("set_epoch is called", DataLoader(Numbers(), batch_size=4, sampler=shares()), 2, sets_epoch=True)
go_ahead()
go("numpy", DataLoader(Numbers(), batch_size=4, sampler=Of(np.int64)))
batches = BatchSampler(RandomSampler(Numbers(), generator=torch.Generator().manual_seed(1)), 10, drop_last=True)
go("a batch sampler", DataLoader(Numbers(), batch_sampler=batches))
go("single samples", DataLoader(Numbers(), batch_size=None, sampler=SequentialSampler(Numbers())))
if sys.argv[1] == "workers":
    loader = DataLoader(Numbers(), batch_size=4, sampler=shares(shuffle=False), num_workers=2, persistent_workers=True)
    go("workers that stay", loader, 2)
print(json.dumps(expected))
