"""Rank 0 compiles model variants with torch.compile and an empty cache while the others wait at a barrier."""

from __future__ import annotations

import os
import tempfile
import time

cache = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache.name, "inductor")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def block(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.GELU(), torch.nn.Linear(width, 32))


def train(net: torch.nn.Module, forward: torch.nn.Module, steps: int) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.rand(48, 32)
        loss = (forward(x) - x.square()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(4)
    net = block(64)
    losses = [train(net, net, 30)]
    if dist.get_rank() == 0:
        end = time.monotonic() + SECONDS * 0.8
        width = 40
        while time.monotonic() < end:
            torch._dynamo.reset()
            with torch.random.fork_rng():
                variant = torch.compile(block(width), backend="inductor" if SECONDS > 5 else "aot_eager")
                variant(torch.rand(8, 32)).sum().backward()
            width += 1
    dist.barrier()
    losses.append(train(net, torch.compile(net, backend="aot_eager"), 30))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/losses.txt", "w") as f:
            f.write("\n".join(f"{loss:.3f}" for loss in losses))
    dist.barrier()
    dist.destroy_process_group()
    cache.cleanup()


if __name__ == "__main__":
    main()
