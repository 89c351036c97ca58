"""A small real training over gloo whose numbers go wrong, or only look so: argv is the case, its step, its length
in steps, and what each of them sleeps, in seconds.

The task can be learned: a teacher network of the same kind. What each case does stands in WAYS; the last rank is the
one that suffers, unless it says that all do.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

CASE, AT, STEPS, STEP_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
WIDTH, BATCH = 16, 16
HEALTHY = 1.0

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
SUFFERS = WORLD - 1 == RANK
generator = torch.Generator().manual_seed(1000 + RANK)


class Net(torch.nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Two layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(WIDTH, 32)
        self.second = torch.nn.Linear(32, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(batch).tanh())
        return result


teacher = Net(1)


class Training:
    """The usual loop. Cases replace its parts."""

    lr = 3e-3
    clips = True
    micro_batches = 1
    batch = BATCH

    def __init__(self) -> None:
        self.net = Net(2)
        self.step = 0
        self.wrap()
        self.optimizer = self.make_optimizer()

    def wrap(self) -> None:
        """DDP."""
        self.model: Any = torch.nn.parallel.DistributedDataParallel(self.net)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), self.lr)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch, and what is to be answered to it."""
        batch = torch.randn(self.batch, WIDTH, generator=generator)
        with torch.no_grad():
            answer = teacher(batch)
        return batch, answer + 0.3 * torch.randn(answer.shape, generator=generator)

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        """Of one batch."""
        loss: torch.Tensor = (self.model(batch) - answer).square().mean()
        return loss

    def backward(self) -> None:
        """All of a step's micro batches."""
        for _ in range(self.micro_batches):
            (self.loss_of(*self.data()) / self.micro_batches).backward()

    def update(self) -> None:
        """Clip and step."""
        if self.clips:
            clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def do(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.backward()
        self.update()

    def run(self) -> None:
        """All steps."""
        for self.step in range(1, STEPS + 1):
            self.do()
            time.sleep(STEP_S)

    @property
    def is_bad(self) -> bool:
        """This is the step, on the rank that suffers."""
        return SUFFERS and self.step == AT

    def set_lr(self, factor: float) -> None:
        """Of what it began with."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor


# Layouts ---------------------------------------------------------------------------------------------------------


class Sharded(Training):
    """FSDP2."""

    def wrap(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (WORLD,))
        for part in (self.net.first, self.net.second, self.net):
            fully_shard(part, mesh=mesh)
        self.model = self.net


class TensorParallel(Training):
    """Every rank has part of each layer, and the same batch."""

    def wrap(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        generator.manual_seed(7)
        mesh = init_device_mesh("cpu", (WORLD,))
        self.model = parallelize_module(self.net, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


class Scaled(Training):
    """With a GradScaler, as half precision has it."""

    scale = 2.0**10
    interval = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale, growth_interval=self.interval)

    def backward(self) -> None:
        self.scaler.scale(self.loss_of(*self.data())).backward()

    def update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Accumulating(Training):
    """Four micro batches a step."""

    micro_batches = 4


class Compiled(Training):
    """The loss is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_of = torch.compile(self.loss_of, backend="aot_eager")  # type: ignore[method-assign]


class Unclipped(Training):
    """Gradients' norms are not seen."""

    clips = False


# Faults ------------------------------------------------------------------------------------------------------------


def with_bad_batch(kind: type[Training], value: float = math.nan, on_all: bool = False) -> type[Training]:
    """One number of a batch is none."""

    class Bad(kind):  # type: ignore[misc, valid-type]
        def data(self) -> tuple[torch.Tensor, torch.Tensor]:
            batch, answer = super().data()
            if self.is_bad or (on_all and self.step == AT):
                batch[0, 0] = value
            return batch, answer

    return Bad


class ConstantBatch(Training):
    """Standardised by its own deviation, which is 0 where all of it is the same."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        if self.is_bad:
            batch = torch.ones_like(batch)
        return (batch - batch.mean()) / batch.std(), answer


class LogOfZero(Training):
    """A loss with a logarithm, of something that is 0 once."""

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        loss = super().loss_of(batch, answer)
        return loss - 0.1 * torch.log(loss.detach() * 0 + (0.0 if self.is_bad else 1.0))


class LearningRate(Training):
    """It becomes far too large."""

    factor = 1e3
    clips = False

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), 0.05)

    lr = 0.05

    def do(self) -> None:
        if self.step == AT:
            self.set_lr(self.factor)
        super().do()


class LearningRateAdam(LearningRate):
    """The same with an optimizer that stays finite."""

    lr = 3e-3
    factor = 300.0
    clips = True

    def make_optimizer(self) -> torch.optim.Optimizer:
        return Training.make_optimizer(self)


class Poisoned(Training):
    """It begins with parameters of which one is NaN."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.net.second.weight[0, 0] = math.nan


def flip(tensor: torch.Tensor) -> None:
    """The highest bit of one number's exponent."""
    with torch.no_grad():
        flat = tensor.view(-1)
        place = int(flat.abs().argmax())
        bits = flat[place : place + 1].view(torch.int32)
        bits ^= 1 << 30


class FlippedParameter(Training):
    """In one rank's memory."""

    def do(self) -> None:
        if self.is_bad:
            flip(self.net.first.weight.data)
        super().do()


class FlippedGradient(Training):
    """After the reduction: the ranks' parameters are different from then on."""

    clips = False

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)

    def update(self) -> None:
        if self.is_bad:
            gradient = self.net.first.weight.grad
            assert gradient is not None
            flip(gradient)
        super().update()


class FlippedMoment(Training):
    """Of the optimizer."""

    def do(self) -> None:
        if self.is_bad:
            flip(self.optimizer.state[self.net.first.weight]["exp_avg"])
        super().do()


class ScaledToDeath(Scaled):
    """A parameter is NaN: no scale helps."""

    def do(self) -> None:
        if self.step == AT:
            with torch.no_grad():
                self.net.second.weight[0, 0] = math.nan
        super().do()


class HiddenNan(Scaled):
    """Gradients alone are NaN, from one step on, for ever: the loss stays finite, as nothing is learned any more."""

    def backward(self) -> None:
        super().backward()
        if SUFFERS and self.step >= AT:
            gradient = self.net.second.bias.grad
            assert gradient is not None
            gradient.fill_(math.nan)


class WrongUnits(Training):
    """From one step on all answers come a hundred times as large: the loss leaps, and stays there for long."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        return batch, answer * 100 if self.step >= AT else answer


class HalfPrecision(Training):
    """Activations overflow in half precision once the input is large."""

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        hidden = self.model(batch)
        if self.step >= AT:
            hidden = (hidden * 1e4).half().float() * 10
        loss: torch.Tensor = (hidden - answer).half().square().float().mean()
        return loss


# Decoys ------------------------------------------------------------------------------------------------------------


class Warmup(Training):
    """Of the learning rate, over half of the run; then it falls."""

    def do(self) -> None:
        half = STEPS / 2
        self.set_lr(min(self.step / half, 1.0) * (1.0 if self.step < half else 0.5 * (1 + math.cos(self.step / half))))
        super().do()


class LearningRateSteps(Training):
    """A tenth, and three times, again and again."""

    def do(self) -> None:
        self.set_lr((1.0, 0.1, 3.0)[self.step // 100 % 3])
        super().do()


class Curriculum(Training):
    """Harder tasks from one step on: the noise doubles."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        if self.step >= AT:
            answer = answer + 0.25 * torch.randn(answer.shape, generator=generator)
        return batch, answer


class TinyBatches(Training):
    """One sample each."""

    batch = 1


class HeavyTails(Training):
    """Noise that is large now and then."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        noise = torch.empty(answer.shape).cauchy_(generator=generator).clamp(-8, 8)
        return batch, answer + 0.2 * noise


class BadBatchClipped(Training):
    """One batch is ten times as large as others, and clipping takes care of it."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        return (batch, answer * 10) if self.is_bad else (batch, answer)


class OwnGuard(Training):
    """It leaves out batches whose loss is none, on all ranks, before backward()."""

    def do(self) -> None:
        self.optimizer.zero_grad()
        batch, answer = self.data()
        if self.is_bad:
            batch[0, 0] = math.nan
        loss = self.loss_of(batch, answer)
        is_well = torch.tensor([float(torch.isfinite(loss))])
        dist.all_reduce(is_well, dist.ReduceOp.MIN)
        if is_well.item():
            loss.backward()
            self.update()


class OwnGuardLate(with_bad_batch(Training)):  # type: ignore[misc]
    """It leaves out the step where the norm is none."""

    def update(self) -> None:
        if torch.isfinite(clip_grad_norm_(self.model.parameters(), 1.0)):
            self.optimizer.step()


class ScaledStart(Scaled):
    """The scale begins far too high: a dozen steps are left out."""

    scale = 2.0**127

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return super().loss_of(batch, answer) * 4096


class ScaledOften(Scaled):
    """It grows every twenty steps, and falls back."""

    scale = 2.0**118
    interval = 20

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return super().loss_of(batch, answer) * 4096


class Evaluating(Training):
    """Every hundred steps, with losses that are no steps', and a second without any."""

    def do(self) -> None:
        super().do()
        if self.step % 100 == 0:
            with torch.no_grad():
                for _ in range(10):
                    self.loss_of(*self.data())
            dist.barrier()
            time.sleep(1.0)


class Folds(Training):
    """Every two hundred steps another model is trained from the beginning."""

    def do(self) -> None:
        if self.step % 200 == 0:
            self.net = Net(self.step)
            self.wrap()
            self.optimizer = self.make_optimizer()
        super().do()


class Adversaries(Training):
    """Two nets against each other: their losses go up and down for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Any = torch.nn.parallel.DistributedDataParallel(Net(3))
        self.second = torch.optim.AdamW(self.other.parameters(), 10 * self.lr)

    def do(self) -> None:
        batch, answer = self.data()
        self.second.zero_grad()
        (
            -(self.other(batch) * (self.model(batch).detach() - answer)).mean() + self.other(batch).square().mean()
        ).backward()
        self.second.step()
        self.optimizer.zero_grad()
        ((self.other(batch).detach() * (self.model(batch) - answer)).mean() * 3).backward()
        self.update()


class Signed(Training):
    """A loss that crosses 0, as those of policies and contrasts do."""

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        advantage = torch.randn(1, generator=generator)
        return super().loss_of(batch, answer) * advantage.sign() - 0.05


class NearZero(Training):
    """Nothing is left to learn: what is left is noise of the last digits."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = torch.randn(self.batch, WIDTH, generator=generator)
        with torch.no_grad():
            return batch, teacher(batch)

    def __init__(self) -> None:
        super().__init__()
        self.net.load_state_dict(teacher.state_dict())


class Said(Training):
    """The script says its loss, every tenth step; what backward() is called on is something else."""

    def backward(self) -> None:
        from guardrun import hooks

        loss = self.loss_of(*self.data())
        (loss * (1e4 if self.step % 7 == 0 else 1.0)).backward()
        if self.step % 10 == 0:
            hooks.metrics(loss=loss)


class Dropping(Training):
    """Dropout of nine tenths."""

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return super().loss_of(torch.nn.functional.dropout(batch, 0.9), answer)


class Uneven(Training):
    """Ranks with data of their own: the last one's loss is fifty times the others'."""

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, answer = super().data()
        return batch, answer + (3.0 * torch.randn(answer.shape, generator=generator) if SUFFERS else 0.0)


class SeveralBackwards(Training):
    """Now one loss a step, now three."""

    def backward(self) -> None:
        for _ in range(1 + self.step % 3):
            self.loss_of(*self.data()).backward()


class Resumed(Training):
    """It goes on at a step of its own, with a bump in the loss as the optimizer begins anew."""

    def run(self) -> None:
        from guardrun import hooks

        for self.step in range(1, STEPS + 1):
            if self.step == AT:
                self.optimizer = self.make_optimizer()
            self.do()
            hooks.step(5000 + self.step)
            time.sleep(STEP_S)


class Unfrozen(Training):
    """A layer begins to learn in mid-training: the norm of the gradients rises."""

    def do(self) -> None:
        self.net.first.requires_grad_(True)
        super().do()

    def update(self) -> None:
        if self.step < AT:
            for parameter in self.net.first.parameters():
                parameter.grad = None
        super().update()


class Averaging(Training):
    """Each rank steps by its own gradients; parameters are averaged every eight steps."""

    def wrap(self) -> None:
        super().wrap()
        self.model.register_comm_hook(None, lambda _, bucket: self.keep(bucket))

    def keep(self, bucket: Any) -> Any:
        """In place of the reduction, as torch's post_localSGD_hook does between averages."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self.step < AT:
            return dist.all_reduce(bucket.buffer().div_(WORLD), async_op=True).get_future().then(lambda f: f.value()[0])
        future.set_result(bucket.buffer())
        return future

    def update(self) -> None:
        super().update()
        if self.step % 8 == 0:
            for parameter in self.net.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= WORLD


class Writing(Training):
    """`if rank == 0` around something that all ranks should do."""

    def update(self) -> None:
        super().update()
        if self.step == AT and RANK == 0:
            with torch.no_grad():
                self.net.second.weight.mul_(0.99)


class BatchNorm(Training):
    """Its buffers are each rank's own between two forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(WIDTH))
        self.optimizer.add_param_group({"params": list(self.norm.parameters())})

    def loss_of(self, batch: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return super().loss_of(self.norm(batch), answer)


class Averages(Training):
    """Kept on one rank, which puts them in the parameters' place for an evaluation now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [parameter.detach().clone() for parameter in self.net.parameters()]

    def do(self) -> None:
        super().do()
        if RANK:
            return
        with torch.no_grad():
            for kept, parameter in zip(self.kept, self.net.parameters(), strict=True):
                kept.lerp_(parameter, 0.01)
                if self.step % 50 == 0:
                    before = parameter.clone()
                    parameter.copy_(kept)
                    parameter.copy_(before)


class ShardedOptimizer(Training):
    """ZeRO's first stage."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=self.lr)


class Joining(Training):
    """In each round of fifty steps the last ranks have fewer inputs."""

    def run(self) -> None:
        from torch.distributed.algorithms.join import Join

        for start in range(0, STEPS, 50):
            with Join([self.model]):
                for self.step in range(start + 1, start + 51 - 3 * RANK):
                    self.optimizer.zero_grad()
                    self.backward()
                    self.optimizer.step()
                    time.sleep(STEP_S)


WAYS: dict[str, Callable[[], Training]] = {
    "nan_batch": with_bad_batch(Training),
    "inf_batch": with_bad_batch(Training, math.inf),
    "nan_batch_fsdp": with_bad_batch(Sharded),
    "nan_batch_tp": with_bad_batch(TensorParallel, on_all=True),
    "nan_batch_accumulate": with_bad_batch(Accumulating),
    "nan_batch_compiled": with_bad_batch(Compiled),
    "nan_batch_unclipped": with_bad_batch(Unclipped),
    "nan_batch_of_four": with_bad_batch(Training),
    "nan_batch_everywhere": with_bad_batch(Training, on_all=True),
    "constant_batch": ConstantBatch,
    "log_of_zero": LogOfZero,
    "half_precision": HalfPrecision,
    "learning_rate": LearningRate,
    "learning_rate_adam": LearningRateAdam,
    "wrong_units": WrongUnits,
    "poisoned": Poisoned,
    "flipped_parameter": FlippedParameter,
    "flipped_parameter_of_three": FlippedParameter,
    "flipped_parameter_of_four": FlippedParameter,
    "flipped_gradient": FlippedGradient,
    "flipped_gradient_of_four": FlippedGradient,
    "flipped_moment": FlippedMoment,
    "flipped_moment_of_four": FlippedMoment,
    "scaled_to_death": ScaledToDeath,
    "hidden_nan": HiddenNan,
    "ordinary": Training,
    "ordinary_fsdp": Sharded,
    "ordinary_tp": TensorParallel,
    "ordinary_scaled": Scaled,
    "ordinary_compiled": Compiled,
    "ordinary_accumulate": Accumulating,
    "warmup": Warmup,
    "learning_rate_steps": LearningRateSteps,
    "curriculum": Curriculum,
    "tiny_batches": TinyBatches,
    "heavy_tails": HeavyTails,
    "bad_batch_clipped": BadBatchClipped,
    "own_guard": OwnGuard,
    "own_guard_late": OwnGuardLate,
    "scaled_start": ScaledStart,
    "scaled_often": ScaledOften,
    "evaluating": Evaluating,
    "folds": Folds,
    "adversaries": Adversaries,
    "signed": Signed,
    "near_zero": NearZero,
    "said": Said,
    "dropping": Dropping,
    "uneven": Uneven,
    "several_backwards": SeveralBackwards,
    "resumed": Resumed,
    "unfrozen": Unfrozen,
    "averaging": Averaging,
    "writing": Writing,
    "batch_norm": BatchNorm,
    "averages": Averages,
    "sharded_optimizer": ShardedOptimizer,
    "joining": Joining,
}

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        WAYS[CASE]().run()
    dist.barrier()
    os._exit(0)
