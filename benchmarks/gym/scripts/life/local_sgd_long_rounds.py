"""Local SGD: sixty slow steps without any collective, then the weights are averaged over the ranks."""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LIFE_SECONDS", "24")))
    parser.add_argument("--local-steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=30)
    return parser.parse_args()


def local_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.randn(8, 10)
    optimizer.zero_grad()
    torch.nn.functional.l1_loss(model(x), x.flip(1)).backward()
    optimizer.step()


def average(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(dist.get_world_size())


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    torch.manual_seed(60 + dist.get_rank())
    normal = [(1, 0.005)] * args.warmup
    plan = [*normal, (args.local_steps, args.seconds / args.local_steps), *normal]
    for steps, pause in plan:
        for _ in range(steps):
            local_step(model, optimizer)
            time.sleep(pause)
        average(model)
    if dist.get_rank() == 0:
        out = pathlib.Path("out")
        out.mkdir(exist_ok=True)
        (out / "weight.txt").write_text(f"{model.weight.abs().sum().item():.3f}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
