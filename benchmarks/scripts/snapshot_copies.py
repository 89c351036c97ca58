"""Copies a state of so many megabytes as hooks.snapshot() does, and saves it to /dev/shm; prints seconds as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from guardrun import hooks
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

CALLS = 20_000
TENSORS = 16


def main() -> None:
    """argv: megabytes, turns."""
    megabytes, turns = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    count = megabytes * 1_000_000 // 4 // TENSORS
    state = {"model": {f"layer{n}": torch.randn(count) for n in range(TENSORS)}, "step": 7}
    os.environ.setdefault("RANK", "0")
    rank = ranks.active = Rank({"sockets": "/nowhere", "snapshots": {"steps": 10, "dir": "/"}}, 0)
    words = rank.words
    took: dict[str, list[float]] = {"copy": [], "saved": [], "call": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="guardrun-bench-") as folder:
        for turn in range(turns + 3):
            words[Field.STEP] = 10 * (turn + 1)
            began = time.perf_counter()
            hooks.snapshot(state, "/step_{step}.pt")
            copied = time.perf_counter()
            words[Field.SNAPSHOT_GRANTED] = words[Field.SNAPSHOT_WANTED]
            path = Path(folder) / "state.pt"
            torch.save(state, path)
            saved = time.perf_counter()
            path.unlink()
            if turn >= 3:  # before, memory is found, and taken
                took["copy"].append(copied - began)
                took["saved"].append(saved - copied)
    for _ in range(turns):
        began = time.perf_counter()
        for _ in range(CALLS):
            hooks.snapshot(state, "/step_{step}.pt")
        took["call"].append((time.perf_counter() - began) / CALLS * 1e6)
    json.dump(took, sys.stdout)


if __name__ == "__main__":
    main()
