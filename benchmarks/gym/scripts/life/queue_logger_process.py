"""A logger process is fed by a queue; it writes slowly, and rank 0 waits in the middle until the queue is empty."""

from __future__ import annotations

import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def logger(queue: mp.JoinableQueue, pause: float) -> None:
    os.makedirs("out", exist_ok=True)
    with open("out/log.txt", "w") as log:
        while (line := queue.get()) is not None:
            log.write(line + "\n")
            time.sleep(pause)
            queue.task_done()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        context = mp.get_context("spawn")
        queue = context.JoinableQueue()
        process = context.Process(target=logger, args=(queue, SECONDS / 60), daemon=True)
        process.start()
    torch.manual_seed(31)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        x = torch.rand(24, 4)
        loss = (model(x) - x.max(1, keepdim=True).values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0:
            queue.put(f"step {step} loss {loss.item():.4f}")
            if step == 39:
                queue.join()
    if rank == 0:
        queue.put(None)
        process.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
