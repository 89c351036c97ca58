"""The script is only a wrapper: a shell prepares things slowly and then starts the Python that really trains."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SHELL = """
set -e
echo "preparing the environment of rank $RANK"
sleep "$PREPARE"
"$PYTHON" "$SCRIPT" train
echo "rank $RANK is through"
"""


def wrapper() -> int:
    environment = {"PYTHON": sys.executable, "SCRIPT": __file__, "PREPARE": str(SECONDS / 2)}
    return subprocess.run(["bash", "-c", SHELL], env=os.environ | environment, check=False).returncode


def train() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(18)
    model = torch.nn.Bilinear(3, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for step in range(60):
        if step == 30 and dist.get_rank() == 1:
            time.sleep(SECONDS / 2)
        a, b = torch.randn(2, 16, 3)
        optimizer.zero_grad()
        (model(a, b).squeeze() - (a * b).sum(1)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/bias.txt", "w") as file:
            file.write(f"{model.weight.sum().item():.3f}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        sys.exit(wrapper())
