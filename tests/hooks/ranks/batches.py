"""A rank that fails on a batch: argv says how many workers, where (loading or training), and at which batch.

With a fourth argument it does not fail there but stays. It ends once there is the file HEARD (in its environment).
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from torch.utils.data import DataLoader, Dataset, DistributedSampler

workers, where, at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def wait() -> None:
    while not os.path.exists(os.environ["HEARD"]):
        time.sleep(0.01)


def fail(text: str) -> None:
    while len(sys.argv) > 4:
        time.sleep(1)
    raise ValueError(text)


class Numbers(Dataset):  # type: ignore[misc]  # torch is not followed by mypy
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if where == "loading" and index == at * 4 + 2:
            fail("bad sample")
        return index


if "HEARD" in os.environ:
    atexit.register(wait)
sampler: DistributedSampler = DistributedSampler(Numbers(), num_replicas=1, rank=0, shuffle=False)
loader = DataLoader(Numbers(), batch_size=4, sampler=sampler, num_workers=workers, in_order=where != "unordered")
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, _ in enumerate(loader):
        if where != "loading" and epoch == 1 and number == at:
            fail("bad batch")
