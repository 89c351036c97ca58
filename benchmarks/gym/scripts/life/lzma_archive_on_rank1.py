"""Rank 1 packs its shard with zlib, bz2 and lzma and unpacks it again; rank 0 waits for it in an all_gather."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import random
import time
import zlib

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
CODECS = {
    "zlib": (lambda data: zlib.compress(data, 9), zlib.decompress),
    "bz2": (bz2.compress, bz2.decompress),
    "lzma": (lambda data: lzma.compress(data, preset=7), lzma.decompress),
}


def archive(data: bytes) -> dict[str, int]:
    """Rounds of all codecs until the time is over; the sizes are those of a small sample."""
    end = time.time() + SECONDS
    sizes = {name: len(pack(data[:20_000])) for name, (pack, _) in CODECS.items()}
    while True:
        for pack, unpack in CODECS.values():
            if time.time() > end:
                return sizes
            assert unpack(pack(data)) == data


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(9)
    model = torch.nn.GRU(32, 48, batch_first=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def train(steps: int) -> float:
        for _ in range(steps):
            x = torch.randn(8, 10, 32)
            loss = model(x)[0].sub(0.5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        return round(float(loss), 4)

    losses = [train(25)]
    mine = None
    if dist.get_rank() == 1:
        rng = random.Random(1)
        size = int(80_000 * max(1.0, min(SECONDS, 24.0)))
        mine = archive(bytes(rng.choices(b"abcdefgh \n", k=size)))
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    losses.append(train(25))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/archive.json", "w") as f:
            json.dump({"losses": losses, "sizes": everybody}, f, indent=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
