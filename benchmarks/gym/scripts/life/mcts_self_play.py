"""Rank 0 plays tic-tac-toe against itself by Monte Carlo tree search before the net is trained on by all ranks."""

from __future__ import annotations

import json
import math
import os
import random
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def winner(board: list[int]) -> int:
    return next((board[a] for a, b, c in LINES if board[a] and board[a] == board[b] == board[c]), 0)


class Tree:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.visits: dict[tuple[int, ...], int] = {}
        self.value: dict[tuple[int, ...], float] = {}

    def simulate(self, board: list[int], player: int) -> float:
        """Returns the result for `player`, who moves next."""
        won = winner(board)
        free = [i for i in range(9) if not board[i]]
        if won or not free:
            return -1.0 if won else 0.0
        key = tuple(board)
        total = self.visits.get(key, 0) + 1
        self.visits[key] = total

        def bound(move: int) -> float:
            child = (*key[:move], player, *key[move + 1 :])
            n = self.visits.get(child, 0)
            return math.inf if n == 0 else -self.value.get(child, 0.0) / n + math.sqrt(2 * math.log(total) / n)

        self.rng.shuffle(free)
        move = max(free, key=bound)
        result = -self.simulate([*board[:move], player, *board[move + 1 :]], -player)
        self.value[key] = self.value.get(key, 0.0) + result
        return result


def self_play(seconds: float) -> list[int]:
    first = Tree(0)
    for _ in range(300):
        first.simulate([0] * 9, 1)
    counts = [first.visits.get(tuple(1 if i == m else 0 for i in range(9)), 0) for m in range(9)]
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        first.simulate([0] * 9, 1)
    return counts


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(9, 128), torch.nn.ReLU(), torch.nn.Linear(128, 9))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    target, history = torch.full((9,), 1 / 9), []
    for round_number in range(3):
        for _ in range(30):
            boards = torch.randint(-1, 2, (64, 9)).float()
            loss = torch.nn.functional.cross_entropy(net(boards), target.expand(64, 9))
            optimizer.zero_grad()
            loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        history.append(round(loss.item(), 3))
        if round_number < 2:
            if dist.get_rank() == 0:
                counts = torch.tensor(self_play(SECONDS / 2), dtype=torch.float32)
                target = counts / counts.sum()
            dist.broadcast(target, src=0)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/policy.json", "w") as f:
            json.dump({"loss": history, "target": [round(v, 3) for v in target.tolist()]}, f)
    dist.barrier()
    dist.destroy_process_group()


main()
