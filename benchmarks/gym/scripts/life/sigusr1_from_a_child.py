"""A child sends SIGUSR1 to rank 0 now and then; rank 0 waits for it, counts the signals and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SIGNALS = 12
counted = 0


def on_usr1(number: int, frame: object) -> None:
    global counted
    counted += 1
    print(f"import: part {counted} of {SIGNALS}", flush=True)


def wait_for_import() -> None:
    signal.signal(signal.SIGUSR1, on_usr1)
    script = f"for i in $(seq {SIGNALS}); do sleep {SECONDS / SIGNALS}; kill -USR1 $PPID; done"
    child = subprocess.Popen(["sh", "-c", script])
    child.wait()
    while counted < SIGNALS:
        time.sleep(0.01)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def train(weights: torch.Tensor, steps: int) -> None:
    for step in range(steps):
        gradient = torch.cos(weights * (step + 1 + dist.get_rank()))
        dist.all_reduce(gradient)
        weights -= 0.02 * gradient
        time.sleep(0.01)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.linspace(-1, 1, 8)
    train(weights, 40)
    if dist.get_rank() == 0:
        wait_for_import()
    train(weights, 40)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/weights.txt", "w") as file:
            file.write(f"signals {counted}\n" + "\n".join(f"{w:.3f}" for w in weights.tolist()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
