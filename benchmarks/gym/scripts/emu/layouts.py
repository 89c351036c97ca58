"""What is trained on the emulated device, but for mixed.py: small models, and the communication of large ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gym.scripts import planted
from benchmarks.gym.scripts.diary import RANK
from benchmarks.gym.scripts.emu.suffering import suffer
from tests.emu import device as emu

WIDTH, BATCH = 32, 8
RATE = 0.01


class Probe(torch.autograd.Function):  # type: ignore[misc]  # mypy skips torch
    """A layer of the user's own: its backward runs on the device's thread."""

    step = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        suffer("backward", Probe.step)
        return grad


class Stack(torch.nn.Module):  # type: ignore[misc]
    """Two layers, and a place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch).relu()
        suffer("layer", Probe.step)
        result: Tensor = self.second(Probe.apply(hidden))
        return result


def sample() -> Tensor:
    return torch.randn(BATCH, WIDTH).to("emu")


class Ddp:
    """DDP, and what all layouts have in common."""

    hosts: Any = None
    """The group in which hosts wait for each other; None: the default one."""

    def __init__(self) -> None:
        self.stack = Stack().to("emu")
        self.model: Any = self.wrap()
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)

    def wrap(self) -> Any:
        return torch.nn.parallel.DistributedDataParallel(self.stack)

    def train(self, step: int) -> Tensor:
        """One step; its loss, which the device may not have computed yet."""
        loss: Tensor = self.model(sample()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce()
        self.optimizer.step()
        return loss.detach()

    def reduce(self) -> None:
        """What DDP does itself."""

    def state(self) -> dict[str, Any]:
        return {name: tensor.cpu() for name, tensor in self.stack.state_dict().items()}

    def load(self, content: dict[str, Any]) -> None:
        self.stack.load_state_dict(content)


class Fsdp(Ddp):
    """fully_shard: gathers and reductions on streams of their own."""

    def wrap(self) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("emu", (dist.get_world_size(),))
        for layer in (self.stack.first, self.stack.second):
            fully_shard(layer, mesh=mesh)
        return fully_shard(self.stack, mesh=mesh)

    def train(self, step: int) -> Tensor:
        if planted.is_due("emu_fsdp_uneven", step):
            dist.barrier()  # here: emu_fsdp_uneven
        return super().train(step)

    def state(self) -> dict[str, Any]:
        return {name: parameter.full_tensor().cpu() for name, parameter in self.stack.named_parameters()}

    def load(self, content: dict[str, Any]) -> None:
        from torch.distributed.tensor import distribute_tensor

        with torch.no_grad():
            for name, parameter in self.stack.named_parameters():
                whole = content[name].to("emu")
                parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))


class Pipeline(Ddp):
    """Activations go down the ranks and gradients up, in batches of sends and receives."""

    def wrap(self) -> Any:
        return self.stack

    def train(self, step: int) -> Tensor:
        last = dist.get_world_size() - 1
        x = sample()
        if RANK > 0:
            exchange((dist.irecv, x, RANK - 1))
        x.requires_grad_()
        y = self.stack(x)
        self.optimizer.zero_grad()
        if last == RANK:
            y.square().mean().backward()
        else:
            grad = torch.empty_like(y)
            is_late = planted.is_due("emu_pp_order", step)
            if is_late:
                exchange((dist.irecv, grad, RANK + 1))  # here: emu_pp_order
            if not planted.is_due("emu_pp_skip", step):
                exchange((dist.isend, y.detach(), RANK + 1))
            if not is_late:
                exchange((dist.irecv, grad, RANK + 1))  # here: emu_pp_skip
            y.backward(grad)
        if RANK > 0:
            assert x.grad is not None
            exchange((dist.isend, x.grad, RANK - 1))
        self.optimizer.step()
        return y.detach().mean()


def exchange(*calls: tuple[Any, Tensor, int]) -> None:
    """A batch of sends and receives, of which the device waits for each."""
    for work in dist.batch_isend_irecv([dist.P2POp(call, tensor, peer) for call, tensor, peer in calls]):
        work.wait()


class Context(Ddp):
    """Each rank has a part of the sequence; keys and values go round all of them."""

    def wrap(self) -> Any:
        return self.stack

    def train(self, step: int) -> Tensor:
        size = dist.get_world_size()
        ahead, behind = (RANK + 1) % size, (RANK - 1) % size
        query = self.stack(sample())
        keys = query.detach().clone()
        scores = query * keys
        for _ in range(size - 1):
            suffer("ring", step)
            others = torch.empty_like(keys)
            if planted.is_due("emu_cp_order", step):
                exchange((dist.isend, keys, behind), (dist.irecv, others, ahead))  # here: emu_cp_order
            else:
                exchange((dist.isend, keys, ahead), (dist.irecv, others, behind))
            keys = others
            scores = scores + query * keys
        loss = scores.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce()
        self.optimizer.step()
        return loss.detach()

    def reduce(self) -> None:
        for parameter in self.stack.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


class Uneven(Ddp):
    """A gather of unequal parts, as of samples of unequal lengths, and gradients reduced in one batch."""

    def wrap(self) -> Any:
        return self.stack

    def train(self, step: int) -> Tensor:
        size = dist.get_world_size()
        mine = torch.full((RANK + 1,), float(step), device="emu")
        parts = [torch.zeros(rank + 1, device="emu") for rank in range(size)]
        dist.all_gather(parts, mine)
        return super().train(step)

    def reduce(self) -> None:
        with dist.distributed_c10d._coalescing_manager(device=torch.device("emu")):
            for parameter in self.stack.parameters():
                dist.all_reduce(parameter.grad)


class Graph(Ddp):
    """A step is captured after some that warm up: gradients are reduced within it, and nobody hears of it again."""

    WARM_UP = 3

    def __init__(self) -> None:
        super().__init__()
        self.batch = sample()
        for _ in range(self.WARM_UP):
            self._step()
        with emu.Capture() as self.graph:
            self.loss = self._step()

    def wrap(self) -> Any:
        return self.stack

    def _step(self) -> Tensor:
        loss: Tensor = self.stack(self.batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.stack.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()
        return loss.detach()

    def train(self, step: int) -> Tensor:
        self.batch.copy_(torch.randn(BATCH, WIDTH))
        self.graph.replay()
        return self.loss
