"""One of two ranks that train in many ways: with a batch of rank 1's that is NaN (`bad`), and without one (`fine`).

Prints for each of the arguments and each way, as JSON: of each step whether anything of parameters and optimizer was
another afterwards, a digest of the parameters at the end, and whether these are finite.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adagrad, AdamW, Optimizer

warnings.simplefilter("error", UserWarning)
STEPS, BAD = 5, 2
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
told: dict[str, dict[str, dict[str, Any]]] = {}


def is_bad() -> bool:
    return "bad" in told and "fine" not in told


def tell(way: str, **fields: Any) -> None:
    """Of the kind that is under way."""
    told[list(told)[-1]][way] = fields


def bits(value: Any) -> bytes:
    """Of a tensor, or of whatever else an optimizer's state has."""
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return repr(value).encode()


def bits_of(optimizers: Iterable[Optimizer]) -> list[bytes]:
    """All that a step may change."""
    found = []
    for optimizer in optimizers:
        inner = getattr(optimizer, "optim", optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = inner.state.get(parameter, {})
                found += [bits(parameter), *(bits(state[name]) for name in sorted(state))]
        found += [bits(group.get("counted")) for group in optimizer.param_groups]
    return found


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def batch(step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + RANK)
    x = torch.randn(4, 8)
    if step == BAD and RANK == 1 and is_bad():
        x[1, 3] = math.nan
    return x


def backward(model: nn.Module, step: int) -> None:
    model(batch(step)).square().mean().backward()


def play(
    name: str,
    model: nn.Module,
    optimizers: list[Optimizer],
    take: Callable[[int], None] | None = None,
) -> None:
    """Train. take: does one step, without zero_grad()."""
    changes = []
    for step in range(STEPS):
        if take is None:
            backward(model, step)
        before = bits_of(optimizers)
        if take is None:
            gradients = [bits(parameter.grad) for parameter in model.parameters()]
            for optimizer in optimizers:
                optimizer.step()
            assert gradients == [bits(parameter.grad) for parameter in model.parameters()]
        else:
            take(step)
        changes.append(bits_of(optimizers) != before)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
    whole = [getattr(each, "full_tensor", lambda each=each: each)().detach() for each in model.parameters()]
    is_finite = all(bool(torch.isfinite(each).all()) for each in whole)
    digest = hashlib.sha256(b"".join(bits(each) for each in whole)).hexdigest()
    tell(name, changes=changes, digest=digest, is_finite=is_finite)


def ddp(model: nn.Module | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(make() if model is None else model)


# All ranks leave the bad step out ----------------------------------------------------------------------------------


class Counting(Optimizer):
    """Somebody's own: it counts in its groups, whether there are gradients or not."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1, "counted": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["counted"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


def held() -> None:
    for name, options in {"": {}, " foreach": {"foreach": True}, " fused": {"fused": True}}.items():
        model = ddp()
        play(f"adamw{name}", model, [AdamW(model.parameters(), 0.01, weight_decay=0.1, **options)])
    model = ddp()
    play("amsgrad for loop", model, [torch.optim.Adam(model.parameters(), 0.01, amsgrad=True, foreach=False)])
    model = ddp()
    play("momentum", model, [SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=0.1)])
    model = ddp()
    play("own", model, [Counting(model.parameters())])
    model = ddp()
    play("zero", model, [ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)])
    model = ddp()
    parts = list(model.parameters())
    play("two", model, [AdamW(parts[:2], 0.01), SGD(parts[2:], 0.1, momentum=0.9)])
    scheduled()
    accumulated()
    closed()
    half = ddp(make().to(torch.bfloat16))

    def take(step: int) -> None:
        half(batch(step).to(torch.bfloat16)).square().mean().backward()
        optimizer.step()

    optimizer: Optimizer = AdamW(half.parameters(), 0.01)
    play("bfloat16", half, [optimizer], take)


def scheduled() -> None:
    """Clipped, and the bad step is the first: a scheduler would warn of one that it has not seen."""
    model = ddp()
    optimizer = AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def take(step: int) -> None:
        backward(model, (step + BAD) % STEPS)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    play("scheduled", model, [optimizer], take)
    assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5**STEPS


def accumulated() -> None:
    model = ddp()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)

    def take(step: int) -> None:
        with model.no_sync():
            backward(model, step)
        backward(model, step + 100)
        optimizer.step()

    play("accumulated", model, [optimizer], take)


def closed() -> None:
    """As Lightning does: the closure has the backward pass in it. It is called once, and its loss is returned."""
    model = ddp()
    optimizer = AdamW(model.parameters(), 0.01)
    calls = []

    def take(step: int) -> None:
        def closure() -> float:
            calls.append(step)
            backward(model, step)
            return 3.5

        assert (optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)) == 3.5

    play("closure", model, [optimizer], take)
    assert calls == list(range(STEPS))


def sharded() -> None:
    """What is NaN on one rank's part alone: it needs all to agree."""

    def spoil(model: nn.Module, step: int) -> None:
        """One number of one shard: nothing before the step has told the others."""
        backward(model, step + 100)
        if step == BAD and RANK == 1 and is_bad():
            gradient = next(each.grad for each in model.parameters() if each.grad is not None)
            getattr(gradient, "_local_tensor", gradient).view(-1)[0] = math.inf

    def take_with(model: nn.Module, optimizer: Optimizer) -> Callable[[int], None]:
        def take(step: int) -> None:
            spoil(model, step)
            optimizer.step()

        return take

    model: nn.Module = make()
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    optimizer: Optimizer = AdamW(model.parameters(), 0.01)
    play("fsdp2", model, [optimizer], take_with(model, optimizer))
    model = parallelize_module(make(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    play("tensor parallel", model, [optimizer], take_with(model, optimizer))
    for use_orig_params in (False, True):
        model = FullyShardedDataParallel(make(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
        optimizer = AdamW(model.parameters(), 0.01)
        play(f"fsdp1 {use_orig_params}", model, [optimizer], take_with(model, optimizer))


# Nothing is left out -----------------------------------------------------------------------------------------------


def scaled() -> None:
    """GradScalers leave it out themselves: a step that nobody else may count."""
    for is_fused in (False, True):
        model = ddp()
        optimizer = AdamW(model.parameters(), 0.01, fused=is_fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def take(step: int, model: nn.Module = model, optimizer: Any = optimizer, scaler: Any = scaler) -> None:
            scaler.scale(model(batch(step)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        play(f"scaled {is_fused}", model, [optimizer], take)


def unmanaged() -> None:
    """Nobody knows who else trains them."""
    model = make()
    optimizer = SGD(model.parameters(), 0.1)

    def take(step: int) -> None:
        backward(model, step)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    play("reduced by hand", model, [optimizer], take)


def uneven(vain: list[str]) -> None:
    """What some ranks do and others don't must not hang. vain: waits for which there was no verdict, so far."""
    model = make()
    alone = AdamW(model.parameters(), 0.01)
    if RANK == 0:
        for step in range(3):
            backward(model, step)
            alone.step()
    # A check of the script's own, by which one rank takes no step.
    shards = make()
    fully_shard(shards, mesh=mesh)

    class Uneven(AdamW):
        pass

    optimizer = Uneven(shards.parameters(), 0.01)
    for step in range(4):
        backward(shards, step + 100)
        if step != 1 or RANK == 0:
            optimizer.step()
    tell("uneven", waited_in_vain=len(vain))
    # Only this rank's gradients are bad, though they were reduced: a fault of its memory.
    replica = ddp()

    class Faulty(SGD):
        pass

    optimizer = Faulty(replica.parameters(), 0.1)
    backward(replica, 100)
    if RANK == 1 and is_bad():
        next(replica.parameters()).grad[0, 0] = math.nan
    before = bits_of([optimizer])
    optimizer.step()
    dist.barrier()  # the other rank has the store
    tell("faulty", changes=[bits_of([optimizer]) != before])


def odd_kinds() -> None:
    """Gradients of all kinds, and none."""

    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 3, sparse=True)
            self.wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
            self.empty = nn.Parameter(torch.ones(0))
            self.whole = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = self.table(torch.tensor([0, 2, 2]))
            return (at * (self.wave * x[1, 1:4]).abs()).sum() + self.frozen.sum() + self.empty.sum()

    torch.manual_seed(0)
    model = ddp(Kinds())
    parts = dict(model.module.named_parameters())
    table = torch.optim.SparseAdam([parts.pop("table.weight")], 0.01)
    others = SGD(parts.values(), 0.1)
    untouched = SGD([nn.Parameter(torch.ones(3))], 0.1)
    play("kinds", model, [table, others, untouched], lambda step: steps(model, step, table, others, untouched))


def steps(model: nn.Module, step: int, *optimizers: Optimizer) -> None:
    backward(model, step)
    for optimizer in optimizers:
        optimizer.step()


class Elsewhere(SGD):
    """Steps in another thread."""


class Late(SGD):
    """torch had wrapped it before guardrun was there."""


def left_alone() -> None:
    model = ddp()
    optimizer = LBFGS(model.parameters(), 0.1, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch(0)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    inside = nn.Linear(8, 8)
    small = {each: SGD([each], 0.1) for each in inside.parameters()}
    for each in inside.parameters():
        each.register_post_accumulate_grad_hook(lambda each: small[each].step())
    backward(inside, 0)
    elsewhere = Elsewhere([nn.Parameter(torch.ones(3))], 0.1)
    thread = threading.Thread(target=elsewhere.step)
    thread.start()
    thread.join()
    late = Late([nn.Parameter(torch.ones(3))], 0.1)
    plain = Late.step
    while hasattr(plain, "__wrapped__"):
        plain = plain.__wrapped__
    Late.step = Optimizer.profile_hook_step.__wrapped__(plain) if guards is not None else plain  # type: ignore[attr-defined]
    late.step()
    tell("left alone", digest=hashlib.sha256(bits(inside.weight) + bits(next(model.parameters()))).hexdigest())


def note_vain_waits(agreement: Any, vain: list[str]) -> None:
    wait = agreement.Agreement._wait

    def _wait(self: Any, name: str) -> bytes:
        verdict: bytes = wait(self, name)
        if verdict == agreement.NONE:
            vain.append(name)
        return verdict

    agreement.Agreement._wait = _wait


guards: Any = sys.modules.get("guardrun.hooks.guards.step_guard")
for kind in sys.argv[1:]:
    told[kind] = {}
    for way in (held, odd_kinds, sharded, scaled, unmanaged, left_alone):
        way()
    if is_bad():
        agreement: Any = sys.modules.get("guardrun.hooks.guards.agreement")
        usual_s, vain = getattr(agreement, "WAIT_S", 0.0), []
        if agreement is not None:
            note_vain_waits(agreement, vain)
            agreement.WAIT_S = 1.0  # not where all come: a busy machine may hold one of them up for longer
        uneven(vain)
        if agreement is not None:
            agreement.WAIT_S = usual_s
dist.destroy_process_group()
alone = [nn.Parameter(torch.ones(3))]
last = Adagrad(alone, 0.1)
alone[0].grad = torch.full((3,), math.nan)
last.step()
print(json.dumps(told))
