"""Experts exchange uneven numbers of tokens (padded, all_to_all); the expert of rank 1 works slowly on its many."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
CAPACITY = 48
SLOW_ROUNDS = range(20, 24)


def exchange(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Padded to one shape, so that every rank sends as much as it receives."""
    size = dist.get_world_size()
    counts = torch.tensor([len(part) for part in parts])
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    padded = torch.zeros(size, CAPACITY, 4)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded)
    return [row[:count] for row, count in zip(received, arriving.tolist(), strict=True)]


def expert(tokens: torch.Tensor, slow: bool) -> torch.Tensor:
    if slow:
        for _ in tokens:
            time.sleep(SECONDS / len(SLOW_ROUNDS) / len(tokens))
    return torch.tanh(tokens)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    total = torch.zeros(4)
    for turn in range(50):
        tokens = torch.randn(24, 4)
        home = (tokens[:, 0] > -0.8).long() % size
        parts = [tokens[home == owner] for owner in range(size)]
        answers = [expert(part, rank == 1 and turn in SLOW_ROUNDS) for part in exchange(parts)]
        back = exchange(answers)
        total += torch.cat(back).sum(0)
    dist.all_reduce(total)
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/total.txt", "w") as file:
            file.write(" ".join(f"{value:.2f}" for value in total.tolist()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
