"""Rank 1 waits for its simulator's Event, half a second at a time in a loop, and says so now and then."""

from __future__ import annotations

import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def simulator(ready: mp.synchronize.Event, reward: mp.sharedctypes.Synchronized) -> None:
    time.sleep(SECONDS)
    reward.value = 2.5
    ready.set()


def update(policy: torch.Tensor, reward: float) -> None:
    for i in range(30):
        g = torch.sin(policy + i) * reward
        dist.all_reduce(g)
        policy -= 0.01 * g
        time.sleep(0.01)


def main() -> None:
    rank = int(os.environ["RANK"])
    ready, reward = mp.Event(), mp.Value("d", 1.0)
    process = mp.Process(target=simulator, args=(ready, reward), daemon=True)
    if rank == 1:
        process.start()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    policy = torch.linspace(0, 1, 50_000)
    update(policy, 0.0)
    update(policy, 1.0)
    if rank == 1:
        tries = 0
        while not ready.wait(timeout=0.5):
            tries += 1
            if tries % 16 == 0:
                print("the simulator is still busy", flush=True)
        process.join()
    value = torch.tensor(reward.value)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    update(policy, value.item())
    os.makedirs("out", exist_ok=True)
    with open(f"out/policy_rank{rank}.txt", "w") as f:
        f.write(f"{value.item():g} {policy.mean().item():.4f}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
