"""Rank 0 parses a large JSON manifest and pickles it, over and over; the others wait for the index."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def manifest(entries: int) -> str:
    rows = [{"id": i, "tags": [i % 7, i % 11], "name": f"clip-{i:07}", "score": i / 4} for i in range(entries)]
    return json.dumps({"version": 2, "rows": rows})


def index(entries: int, seconds: float) -> dict[str, int]:
    text = manifest(entries)
    since = time.monotonic()
    while True:
        rows = pickle.loads(pickle.dumps(json.loads(text)))["rows"]
        if time.monotonic() - since > seconds:
            return {"rows": len(rows), "sevens": sum(1 for r in rows if r["tags"][0] == 0)}


def main(args: argparse.Namespace) -> None:
    dist.init_process_group(backend="gloo")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    layer = torch.nn.Linear(256, 128)
    opt = torch.optim.AdamW(layer.parameters())
    history = []
    for phase in range(3):
        for step in range(25):
            x = torch.randn(32, 256)
            opt.zero_grad()
            loss = (layer(x) - x[:, ::2]).abs().mean()
            loss.backward()
            for p in layer.parameters():
                dist.all_reduce(p.grad)
            opt.step()
            if step % 5 == 0:
                history.append(round(loss.item(), 4))
        if phase < 2:
            got = [index(args.entries, SECONDS / 2) if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(got, src=0)
            history.append(got[0])
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/history.json", "w") as f:
            json.dump(history, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=400_000 if SECONDS > 10 else 20_000)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
