"""DDP or FSDP over gloo, the same numbers each time; saves by one line when guardrun asks for it, well or badly."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from faults import let_go
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from guardrun import hooks

parser = argparse.ArgumentParser()
parser.add_argument("--fault", action="append", default=[], help="of attempt 0, 1, …: FAULT@STEP:RANK")
parser.add_argument("--how", action="append", default=[], help="how the function saves, in attempt 0, 1, … and after")
parser.add_argument("--first-save", type=int, default=0, help="an ordinary save after this step")
parser.add_argument("--steps", type=int, default=16)
parser.add_argument("--resume", default="")
parser.add_argument("--said", action="store_true", help="its own step() ends each of its steps")
parser.add_argument("--shards", type=int, default=0, help="FSDP2, with as many replicas as there are ranks for")
parser.add_argument("--dcp", action="store_true", help="by torch.distributed.checkpoint")
parser.add_argument("--again", action="store_true", help="in the end once more from the beginning, undisturbed")
parser.add_argument("--enough", default="", help="a file: once it is there, this step was the last one")
parser.add_argument("--marks", default="", help="what tests of several nodes give all scripts")
arguments = parser.parse_args()
RANK, ATTEMPT = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
FAULT, _, AT = dict(enumerate(arguments.fault)).get(int(ATTEMPT), "").partition("@")
HOW = [*arguments.how, *arguments.how[-1:] * int(ATTEMPT)][int(ATTEMPT)] if arguments.how else "well"
OUT = Path("out")


class State:
    def __init__(self) -> None:
        torch.manual_seed(3)
        layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 4))
        self.model = shard(layers) if arguments.shards else DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=50)
        self.steps = 0

    def parts(self) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        return getattr(self.model, "module", self.model), self.optimizer, self.scheduler

    def save(self, name: str, says: int | None = None, out: Path = OUT) -> str:
        out.mkdir(exist_ok=True)
        content = {str(n): part.state_dict() for n, part in enumerate(self.parts())}
        named = {"model": content["0"], "optimizer": content["1"], "scheduler": content["2"]}
        if arguments.shards:
            part = RANK % arguments.shards
            name += f"_rank{part}" if HOW == "bare" else f"_shard{part}_of_{arguments.shards}"
        torch.save({**named, "step": self.steps if says is None else says}, out / f"{name}.tmp")
        os.replace(out / f"{name}.tmp", out / f"{name}.pt")
        return str(out / f"{name}.pt")

    def save_dcp(self, name: str) -> str:
        """In one folder, with what torch's own resharding needs."""
        return hooks.dcp_save(self.state_dict(), OUT / name)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer, scheduler = self.parts()
        tensors, moments = get_state_dict(model, optimizer)
        return {"model": tensors, "optimizer": moments, "scheduler": scheduler, "step": self.steps}

    def load_dcp(self, path: str) -> None:
        model, optimizer, _ = self.parts()
        content = self.state_dict()
        dcp.load(content, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
        self.steps = content["step"]

    def load(self, path: str) -> None:
        if arguments.dcp:
            self.load_dcp(path)
            return
        if arguments.shards:
            part = RANK % arguments.shards
            path = path.replace("shard0", f"shard{part}").replace("rank0", f"rank{part}")
        content = torch.load(path)
        for name, part in zip(("model", "optimizer", "scheduler"), self.parts(), strict=True):
            part.load_state_dict(content[name])
        self.steps = content["step"]


def shard(layers: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // arguments.shards, arguments.shards), mesh_dim_names=("copies", "shards"))
    fully_shard(layers[0], mesh=mesh)
    return fully_shard(layers, mesh=mesh)


dist.init_process_group("gloo")
state = State()


def save_in_time() -> str | None:
    """Called by guardrun."""
    Path(f"asked-{ATTEMPT}-{RANK}").touch()
    how, path = HOW, f"jit_{state.steps}"
    if how == "raises" or (how == "part" and RANK % arguments.shards):
        raise OSError("no space left for this")
    if how == "hangs":
        state.save(path)
        time.sleep(1000)
    if how == "apart":
        return state.save(path, out=Path("apart"))
    if how == "collective":
        dist.barrier()
    if how == "torn":
        torn = Path(state.save(path))
        torn.write_bytes(torn.read_bytes()[:-100])
        return str(torn)
    if arguments.dcp:
        if how == "there":
            (OUT / path).mkdir()
        return state.save_dcp(path)
    if how == "ahead":
        return state.save(path, state.steps + 1)
    if how == "missing":
        return "out/nowhere.pt"
    if how == "older":
        return f"out/ckpt_{arguments.first_save}.pt"
    if how == "nothing":
        return None
    if how == "foreign":
        return __file__
    return state.save(path)


def suffer() -> None:
    while arguments.marks and not Path(f"go-{ATTEMPT}").exists():  # a head hears of other nodes' ranks once a second
        time.sleep(0.01)
    match FAULT:
        case "block":
            time.sleep(1000)
        case "lose":  # whoever starts this takes its node away
            Path(f"lose-{ATTEMPT}").touch()
            time.sleep(1000)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("sample 99 is no image")
        case "after" | "between":  # the other rank waits for it there: what follows a step is not done; or is
            time.sleep(1000)


if HOW == "twice":
    hooks.save_with(lambda: "out/wrong.pt")
if HOW != "none":
    hooks.save_with(save_in_time, between_steps=arguments.said)
if HOW == "taken":
    hooks.save_with(None)
if arguments.resume:
    state.load(arguments.resume)
print(f"attempt {ATTEMPT} rank {RANK} starts at step {state.steps}", file=sys.stderr, flush=True)


def train(attempt: str, name: str, at: str = "") -> None:
    losses = open(f"{name}-{RANK}", "a")  # noqa: SIM115
    for step in range(state.steps + 1, arguments.steps + 1):
        time.sleep(0.02)
        is_due = f"{step}:{RANK}" == at
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + RANK))
        if is_due and FAULT not in ("after", "between"):
            suffer()
        state.optimizer.zero_grad()
        loss = state.model(batch).square().mean()
        loss.backward()
        state.optimizer.step()
        if FAULT == "after" and at.startswith(f"{step}:"):
            if is_due:
                suffer()
            dist.all_reduce(loss.detach())
        state.scheduler.step()
        state.steps = step
        losses.write(f"{attempt} {step} {loss.item().hex()}\n")
        losses.flush()
        if arguments.said:
            hooks.step()
        if arguments.enough:
            is_there = torch.tensor(float(Path(arguments.enough).exists()))
            dist.all_reduce(is_there)
            if is_there:
                break
        if FAULT == "between" and at.startswith(f"{step}:"):
            if is_due:
                suffer()
            dist.barrier()
        if at and step == arguments.first_save:
            if arguments.dcp:
                state.save_dcp(f"ckpt_{step}")
            elif max(1, arguments.shards) > RANK:
                state.save(f"ckpt_{step}")
            dist.barrier()


train(ATTEMPT, "losses", AT or "never")
if arguments.again:
    hooks.save_with(None)
    state = State()
    train("again", "undisturbed")
dist.barrier()
dist.destroy_process_group()
let_go()
