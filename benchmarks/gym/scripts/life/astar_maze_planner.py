"""Between two epochs rank 0 plans routes through mazes with A* in pure Python; the others wait at a barrier."""

from __future__ import annotations

import heapq
import json
import os
import random
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SIZE = 150


class Maze:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.walls = {(rng.randrange(SIZE), rng.randrange(SIZE)) for _ in range(SIZE * SIZE // 4)}
        self.goal = (SIZE - 1, SIZE - 1)
        self.walls -= {(0, 0), self.goal}

    def solve(self) -> int:
        frontier = [(2 * SIZE, 0, (0, 0))]
        seen = {(0, 0): 0}
        while frontier:
            _, cost, (x, y) = heapq.heappop(frontier)
            if (x, y) == self.goal:
                return cost
            for nxt in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if not (0 <= nxt[0] < SIZE and 0 <= nxt[1] < SIZE) or nxt in self.walls:
                    continue
                if cost + 1 < seen.get(nxt, 1 << 30):
                    seen[nxt] = cost + 1
                    guess = cost + 1 + 2 * SIZE - nxt[0] - nxt[1]
                    heapq.heappush(frontier, (guess, cost + 1, nxt))
        return -1


def epoch(model: torch.nn.Linear, steps: int = 35) -> float:
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for _ in range(steps):
        x = torch.randn(128, 200)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :50])
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        total += loss.item()
    return round(total / steps, 4)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    model = torch.nn.Linear(200, 50)
    report = {"epoch 0": epoch(model)}
    if dist.get_rank() == 0:
        end = time.time() + SECONDS
        report["routes"] = [Maze(seed).solve() for seed in range(3)]
        seed = 3
        while time.time() < end:
            Maze(seed).solve()
            seed += 1
    dist.barrier()
    report["epoch 1"] = epoch(model)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open(os.path.join("out", "report.json"), "w") as fh:
            json.dump(report, fh, indent=1)
    dist.barrier()
    dist.destroy_process_group()


main()
