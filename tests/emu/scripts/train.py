"""Training on the emulated device, with a fault of choice: what its tests and guardrun's run.

train.py --fault stuck_kernel --rank 1 --at 20
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.emu import device as emu

Tensor = torch.Tensor


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="ddp", choices=sorted(LAYOUTS))
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sync-every", type=int, default=10, help="steps from one loss.item() to the next")
    parser.add_argument("--kernel-s", type=float, default=0.0, help="what the device takes for a step, besides")
    parser.add_argument("--hold-from", type=int, default=-1, help="the device waits from here until all are launched")
    parser.add_argument("--slow-s", type=float, default=0.0, help="how much longer --rank's device takes from --at on")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    parser.add_argument("--fault", default="", help="never_issues, blocked_in_backward, exits, or one of emu.FAULTS")
    parser.add_argument("--rank", type=int, default=1, help="whom the fault befalls")
    parser.add_argument("--at", type=int, default=10, help="in which step")
    parser.add_argument("--out", default="", help="a folder into which each rank writes what it ended with")
    return parser.parse_args()


class Backward(torch.autograd.Function):
    """A layer of the user's own: its backward runs on the device's thread, as all of that does."""

    thread = ""
    wait_s = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Backward.thread = threading.current_thread().name
        if Backward.wait_s:
            read_features(Backward.wait_s)
        return grad


def read_features(seconds: float) -> None:
    """A remote store that does not answer."""
    time.sleep(seconds)


def fetch_batch(seconds: float) -> None:
    """A loader that does not answer."""
    time.sleep(seconds)


def befall(fault: str) -> None:
    if fault == "never_issues":
        fetch_batch(emu.FOREVER_S)
    elif fault == "blocked_in_backward":
        Backward.wait_s = emu.FOREVER_S
    elif fault == "exits":
        os._exit(3)
    elif fault:
        emu.inject(fault)


class Ddp:
    """A small model under DDP; every rank has the same data, so that one process alone reaches the same numbers."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("emu")
        self.model = DistributedDataParallel(self.layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(32, 8, generator=generator).to("emu")
        loss = Backward.apply(self.model(x)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def parameters(self) -> list[list[float]]:
        """What it has learned."""
        return [each.detach().cpu().tolist() for each in self.layers.parameters()]


class Fsdp(Ddp):
    """The same model in shards: gathers and reductions on streams of their own."""

    def __init__(self) -> None:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("emu")
        mesh = init_device_mesh("emu", (dist.get_world_size(),))
        fully_shard(self.layers[0], mesh=mesh)
        self.model = fully_shard(self.layers, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def parameters(self) -> list[list[float]]:
        return [each.full_tensor().cpu().tolist() for each in self.model.parameters()]


class Shared(torch.autograd.Function):
    """What every rank has alike: its gradient is the sum of the ranks' parts. As Megatron's tensor parallel has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Summed(torch.autograd.Function):
    """The sum of what the ranks have computed in part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class TensorParallel(Ddp):
    """Each rank has half of every layer; sums in the stream that computes, forward and backward."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        size = dist.get_world_size()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16 // size), torch.nn.Linear(16 // size, 4)).to("emu")
        self.model = lambda x: Summed.apply(self.layers(Shared.apply(x)))
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.01)


class Pipeline:
    """Activations go down the ranks and gradients up, in batches of sends and receives."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.state = torch.zeros(16, device="emu")
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(16, device="emu"))])

    def step(self, number: int) -> Tensor:
        before, after = self.rank - 1, self.rank + 1
        x = torch.full((16,), float(number), device="emu")
        self._exchange([(dist.irecv, x, before)])
        x = x + 1
        self._exchange([(dist.isend, x, after)])
        grad = x.clone()
        self._exchange([(dist.irecv, grad, after)])
        self._exchange([(dist.isend, grad, before)])
        self.state = self.state + grad
        self.optimizer.step()
        return self.state.mean()

    def _exchange(self, ops: list[tuple[Any, Tensor, int]]) -> None:
        batch = [dist.P2POp(op, tensor, peer) for op, tensor, peer in ops if 0 <= peer < self.size]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()


class Uneven:
    """A gather of unequal parts and a coalesced reduction, as evaluations and optimizers have them."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def step(self, number: int) -> Tensor:
        mine = torch.full((self.rank + 1,), float(number + self.rank), device="emu")
        parts = [torch.zeros(rank + 1, device="emu") for rank in range(self.size)]
        dist.all_gather(parts, mine)
        total = torch.cat(parts).sum()
        with dist.distributed_c10d._coalescing_manager(device=total.device):
            dist.all_reduce(total)
        return total


class Graph:
    """A step captured once, as a CUDA graph: its sum over all ranks is in each replay, and no call is made for it."""

    def __init__(self) -> None:
        self.x = torch.zeros(4, device="emu")
        self.total = torch.zeros(4, device="emu")
        dist.all_reduce(torch.zeros(4, device="emu"))  # Communicators are made before, as for a real one.
        with emu.Capture() as self.graph:
            y = self.x * 2 + 1
            dist.all_reduce(y)
            work = dist.all_reduce(self.x.clone(), async_op=True)
            work.wait()
            self.total += y

    def step(self, number: int) -> Tensor:
        self.x.fill_(float(number + dist.get_rank()))
        self.graph.replay()
        return self.total.mean()


LAYOUTS = {
    "ddp": Ddp,
    "fsdp": Fsdp,
    "tensor": TensorParallel,
    "pipeline": Pipeline,
    "uneven": Uneven,
    "graph": Graph,
}


def main() -> None:
    arguments = parse()
    emu.use()
    # The store has that time, too: a rank that begins late is no fault.
    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=max(120.0, arguments.timeout_s)))
    if arguments.timeout_s < 120:
        dist.group.WORLD._get_backend(torch.device("emu")).set_timeout(timedelta(seconds=arguments.timeout_s))
    rank = dist.get_rank()
    job = LAYOUTS[arguments.layout]()
    losses: list[float] = []
    print(f"rank {rank} begins", flush=True)
    for number in range(arguments.steps):
        if arguments.fault and rank == arguments.rank and number == arguments.at:
            befall(arguments.fault)
        if number == arguments.hold_from:
            emu.hold()
        if arguments.kernel_s:
            emu.kernel(arguments.kernel_s)
        if arguments.slow_s and rank == arguments.rank and number >= arguments.at:
            emu.kernel(arguments.slow_s)
        loss = job.step(number)
        if (number + 1) % arguments.sync_every == 0:
            losses.append(loss.item())
            print(f"rank {rank} step {number + 1} loss {losses[-1]:.4f}", flush=True)
    launched = json.loads(emu.dump())["pg_status"]
    emu.release()
    emu.synchronize()
    if arguments.out:
        told = {
            "losses": losses,
            "launched": launched,
            "counted": dist.group.WORLD._get_sequence_number_for_group(),
            "thread": Backward.thread,
            "parameters": job.parameters() if isinstance(job, Ddp) else [],
            "dump": json.loads(emu.dump()),
        }
        Path(arguments.out, f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
