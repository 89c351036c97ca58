"""Training on the emulated device that saves by one line when guardrun asks for it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from guardrun import hooks
from tests.emu import device as emu

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--waits", default="before", choices=["before", "after", "never"], help="the host for the device")
parser.add_argument("--fault", default="", help="of the first attempt: block, kill, between, or one of emu.FAULTS")
parser.add_argument("--at", type=int, default=8, help="in which step")
parser.add_argument("--culprit", type=int, default=1, help="on which rank")
parser.add_argument("--kernel-s", type=float, default=0.0, help="what the device takes for a step, besides")
parser.add_argument("--shards", type=int, default=0, help="FSDP2, with as many replicas as there are ranks for")
parser.add_argument("--resume", default="")
arguments = parser.parse_args()


def shard(layers: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    copies = dist.get_world_size() // arguments.shards
    mesh = init_device_mesh("emu", (copies, arguments.shards), mesh_dim_names=("copies", "shards"))
    fully_shard(layers[0], mesh=mesh)
    return fully_shard(layers, mesh=mesh)


def to_host(one: object) -> object:
    return one.cpu() if isinstance(one, torch.Tensor) else one


emu.use()
dist.init_process_group("nccl")
rank, attempt = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
torch.manual_seed(7)
layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("emu")
model = shard(layers) if arguments.shards else DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
done = 0
if arguments.resume:
    content = torch.load(arguments.resume.replace("shard0", f"shard{rank % max(1, arguments.shards)}"))
    layers.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    done = content["step"]


def save() -> str:
    Path(f"asked-{attempt}-{rank}").touch()
    Path("out").mkdir(exist_ok=True)
    path = f"out/jit_{done}.pt"
    if arguments.shards:
        path = f"out/jit_{done}_shard{rank % arguments.shards}_of_{arguments.shards}.pt"
    content = {"model": layers.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
    torch.save(tree_map(to_host, content), f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
    return path


hooks.save_with(save, between_steps=arguments.fault == "between")
print(f"attempt {attempt} rank {rank} starts at step {done}", file=sys.stderr, flush=True)
losses = open(f"losses-{rank}", "a")  # noqa: SIM115
for step in range(done + 1, arguments.steps + 1):
    time.sleep(0.02)
    if arguments.fault != "between" and attempt == "0" and (rank, step) == (arguments.culprit, arguments.at):
        if arguments.fault == "block":
            time.sleep(1000)
        if arguments.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if arguments.fault:
            emu.inject(arguments.fault)
    if arguments.kernel_s:
        emu.kernel(arguments.kernel_s)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + rank)).to("emu")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if arguments.waits == "before":
        emu.synchronize()  # as a scaler does that looks for infinities
    optimizer.step()
    done = step
    if arguments.waits != "never":
        losses.write(f"{attempt} {step} {loss.item().hex()}\n")
        losses.flush()
    elif step == 20:
        Path(f"ahead-{rank}").touch()
    if arguments.fault == "between":
        hooks.step()
        if attempt == "0" and step == arguments.at:  # the loss of all, say: the host waits for it, after the step
            if rank == 1:
                time.sleep(1000)
            dist.all_reduce(loss.detach())
            emu.synchronize()
emu.synchronize()
dist.destroy_process_group()
