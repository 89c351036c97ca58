"""An interval timer (SIGALRM, 20 times a second) interrupts rank 0 while it sleeps and reads a slow pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from types import FrameType

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Ticker:
    """Counts ticks, for a progress bar."""

    def __init__(self) -> None:
        self.ticks = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.ticks += 1

    def __enter__(self) -> Ticker:
        self.previous = signal.signal(signal.SIGALRM, self)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.previous)


def fetch() -> str:
    command = f"sleep {SECONDS / 2:.2f}; echo labels ready"
    return subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(18)
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.SiLU(), torch.nn.Linear(96, 48))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def steps(count: int) -> float:
        for _ in range(count):
            x = torch.randn(80, 48)
            loss = (model(x) + x).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        return loss.item()

    lines = [f"{steps(30):.3f}"]
    if rank == 0:
        with Ticker() as ticker:
            time.sleep(SECONDS / 2)
            lines.append(fetch())
        assert ticker.ticks > 5
    dist.barrier()
    lines.append(f"{steps(30):.3f}")
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/lines.txt", "w") as f:
            f.write("\n".join(lines))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
