"""Rank 0 scores candidates in a ProcessPoolExecutor, taken as they complete; the others wait at a barrier."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
CANDIDATES = 6


def score(candidate: int, seconds: float) -> tuple[int, float]:
    end = time.monotonic() + seconds
    first = value = 0.0
    while time.monotonic() < end:
        value = sum((candidate * k) % 97 for k in range(20_000)) / 20_000
        first = first or value
    return candidate, first


class Search:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        torch.manual_seed(2)
        self.policy = torch.nn.Linear(64, CANDIDATES)
        self.opt = torch.optim.SGD(self.policy.parameters(), lr=0.1)

    def fit(self, prior: torch.Tensor) -> None:
        for _ in range(35):
            logits = self.policy(torch.rand(256, 64))
            loss = torch.nn.functional.kl_div(logits.log_softmax(1), prior.expand(256, -1), reduction="batchmean")
            self.opt.zero_grad()
            loss.backward()
            for p in self.policy.parameters():
                dist.all_reduce(p.grad)
            self.opt.step()

    def score_all(self) -> torch.Tensor:
        scores = torch.zeros(CANDIDATES)
        if self.rank == 0:
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
                jobs = [pool.submit(score, c, SECONDS / CANDIDATES) for c in range(CANDIDATES)]
                for job in concurrent.futures.as_completed(jobs):
                    candidate, value = job.result()
                    scores[candidate] = value
        dist.barrier()
        dist.broadcast(scores, src=0)
        return scores


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    search = Search()
    search.fit(torch.full((CANDIDATES,), 1 / CANDIDATES))
    scores = search.score_all()
    search.fit(scores.softmax(0))
    if search.rank == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/scores.txt", "w") as f:
            f.write(" ".join(f"{s:.3f}" for s in scores.tolist()) + "\n")
            f.write(f"{search.policy.bias.sum().item():.3f}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
