"""Rank 0 uses up the whole time box of a pure Python tour search; the others wait for the tour in a broadcast."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
CITIES = [(math.cos(3 * i), math.sin(5 * i)) for i in range(6)]


def length(tour: tuple[int, ...]) -> float:
    return sum(math.dist(CITIES[a], CITIES[b]) for a, b in itertools.pairwise((0, *tour, 0)))


def search(budget: float) -> tuple[int, ...]:
    best = min(itertools.permutations(range(1, 6)), key=lambda t: (round(length(t), 6), t))
    end = time.monotonic() + budget
    draw = random.Random(0)
    while time.monotonic() < end:  # the solver never knows that it is through
        candidate = tuple(draw.sample(range(1, 6), 5))
        if length(candidate) < length(best) - 1e-6:
            best = candidate
    return best


def train(embedding: torch.nn.Embedding, order: tuple[int, ...]) -> list[float]:
    opt = torch.optim.SGD(embedding.parameters(), lr=0.05)
    result = []
    for _ in range(30):
        vectors = embedding(torch.tensor(order))
        loss = (vectors[1:] - vectors[:-1]).pow(2).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(embedding.weight.grad)
        opt.step()
        result.append(round(loss.item(), 3))
        time.sleep(0.01)
    return result


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(17)
embedding = torch.nn.Embedding(6, 512)
losses = train(embedding, (1, 2, 3, 4, 5))
found = [search(SECONDS) if dist.get_rank() == 0 else None]
dist.broadcast_object_list(found, src=0)
losses += train(embedding, found[0])
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/tour.json", "w") as f:
        json.dump({"tour": found[0], "losses": losses}, f)
dist.barrier()
dist.destroy_process_group()
