"""Training in the manners of daily life, of which some steps are traced (`guardctl trace`), or not: it must not show.

Arguments: a folder, and `trace` or `plain`. A digest of losses and parameters of each case goes to
FOLDER/digests, what each has changed of modules and torch to FOLDER/left, and what the trace said to FOLDER/told.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.utils.checkpoint import checkpoint

from guardrun.hooks.rank import rank as ranks

warnings.filterwarnings("error", message=".*global hooks.*")
STEPS, TRACED = 8, 3
torch.set_num_threads(1)
folder, is_traced = Path(sys.argv[1]), sys.argv[2] == "trace"
digests: dict[str, str] = {}
told: dict[str, Any] = {}
left: dict[str, Any] = {}
"""What has changed by the end of it."""


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None


class Split(nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Gives out a dictionary, a named tuple, nothing."""

    def forward(self, x: torch.Tensor, *, wanted: str) -> Any:
        if wanted == "dict":
            return {"a": x * 2, "b": [x + 1, None], "c": 3}
        return Pair(x * 3, None) if wanted == "pair" else None


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.relu, self.outer = nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Linear(32, 8)
        self.again = self.inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.outer(self.relu(self.inner(x)))
        y += x  # in place, on what a module has given out
        return y  # type: ignore[no-any-return]


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, is_checkpointed: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.blocks.append(self.blocks[0])  # shared
        self.split, self.drop = Split(), nn.Dropout(0.1)
        self.head = nn.Linear(8, 4)
        self.is_reentrant = is_checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            if self.is_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.is_reentrant)
        self.split(x, wanted="none")
        x = self.split(x, wanted="dict")["b"][0] + self.split(x, wanted="pair").left
        return self.head(self.drop(x).chunk(2)[0])  # type: ignore[no-any-return]


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 16, (6, 5), generator=torch.Generator().manual_seed(step))


def make(**more: Any) -> Net:
    torch.manual_seed(5)
    return Net(**more)


def run(name: str, model: Any, step: Callable[[int, Any], torch.Tensor] | None = None, call: Any = None) -> None:
    """Train; trace from the third step on."""
    found = hashlib.sha256()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    before = snapshot(model)
    examination = None
    for number in range(STEPS):
        loss = step(number, model) if step is not None else (call or model)(batch(number)).square().mean()
        if step is None:
            loss.backward()
        found.update(repr(loss.item()).encode())
        if is_traced and number == 2:
            try:
                examination = begin()
            except ValueError as error:
                told[name] = str(error)
        optimizer.step()
        optimizer.zero_grad()
    for each in model.parameters():
        found.update(getattr(each, "_local_tensor", each).detach().numpy().tobytes())
    digests[name] = found.hexdigest()
    if examination is not None:
        told[name] = examination.on_beat(0) or "it is not over"
    after = snapshot(model)
    left[name] = [sorted(set(one) - set(other)) for one, other in ((before, after), (after, before))]


def begin() -> Any:
    from guardrun.hooks.examine.module_times import ModuleTimes

    rank = ranks.active
    assert rank is not None
    return ModuleTimes(rank, {"steps": TRACED, "seconds": 60, "bytes": 500_000})


def snapshot(model: Any) -> list[str]:
    """Whatever a trace might leave behind."""
    found: list[Any] = []
    for place, each in enumerate(model.modules()):
        found += [(place, name, len(value) if name.endswith("hooks") else 0) for name, value in vars(each).items()]
    found += [(name, len(value)) for name, value in vars(global_hooks).items() if name.startswith("_global_") and value]
    found += [global_hooks._has_any_global_hook, nn.Module.__call__, nn.Module._call_impl]
    found += [[name for name in vars(each) if "hook" in name] for each in model.parameters()]
    steps: Any = ranks.active.steps if ranks.active is not None else None
    found.append(steps._and_then.__name__ if steps is not None else "on_step")
    dynamo = sys.modules.get("torch._dynamo.callback")
    found.append(len(dynamo.callback_handler.start_callbacks) if dynamo is not None else 0)
    return [re.sub(" at 0x[0-9a-f]*", "", str(one)) for one in found]


def accumulated(number: int, model: Any) -> torch.Tensor:
    losses = [model(batch(10 * number + part)).square().mean() / 3 for part in range(3)]
    for loss in losses:
        loss.backward()
    return sum(losses)  # type: ignore[return-value]


def evaluated(number: int, model: Any) -> torch.Tensor:
    with torch.no_grad():
        model(batch(99))
    loss = model(batch(number)).square().mean()
    loss.backward()
    return loss  # type: ignore[no-any-return]


def penalised(number: int, model: Any) -> torch.Tensor:
    """Gradients of gradients, a graph that is kept, and torch.func."""
    values = model(batch(number)).square()
    gradients = torch.autograd.grad(values.sum(), list(model.head.parameters()), create_graph=True)
    loss = values.mean() + 0.1 * sum(each.square().sum() for each in gradients)
    loss.backward(retain_graph=True)
    loss.backward()
    parameters = {name: each.detach() for name, each in model.head.named_parameters()}

    def score(values: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model.head, values, (x,)).sum()  # type: ignore[no-any-return]

    each = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0))(parameters, torch.ones(2, 8))
    return loss + each["bias"].sum()  # type: ignore[no-any-return]


class Carried:
    """What one step computes goes into the next one's graph."""

    def __init__(self) -> None:
        self.state: torch.Tensor | None = None

    def __call__(self, number: int, model: Any) -> torch.Tensor:
        out = model(batch(number))
        loss = out.square().mean() + (0.0 if self.state is None else 0.01 * self.state.mean())
        loss.backward(retain_graph=True)
        self.state = out.detach() if number % 2 else out
        self.state = self.state.detach()
        return loss  # type: ignore[no-any-return]


def threads(number: int, model: Any) -> torch.Tensor:
    other, seen = make().eval(), []  # which draws no numbers

    def score() -> None:
        with torch.no_grad():
            seen.append(other(batch(7)).shape)

    thread = threading.Thread(target=score)
    thread.start()
    loss = model(batch(number)).square().mean()
    loss.backward()
    thread.join()
    assert seen
    return loss  # type: ignore[no-any-return]


def raising(number: int, model: Any) -> torch.Tensor:
    """Calls that do not return."""
    for wrong in (torch.full((6, 5), 99), None):
        try:
            model(wrong)
        except (IndexError, TypeError):
            pass
    return evaluated(number, model)


def hooked() -> Net:
    model = make()
    model.head.register_forward_hook(lambda module, args, output: output * 2)
    model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.head.register_full_backward_hook(lambda module, given, gives: (given[0] * 2,))
    return model


def compiled_hooked() -> Net:
    model = make()
    model.head.register_forward_hook(lambda module, args, output: output * 2)
    model.compile(backend="aot_eager")
    return model


def compiled_in_place() -> Net:
    model = make()
    model.compile(backend="aot_eager", fullgraph=True)
    return model


def compiled_block() -> Net:
    model = make()
    model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager", fullgraph=True)
    return model


class Graphs:
    """What dynamo has compiled, which must be as much with a trace as without."""

    def __enter__(self) -> None:
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()

    def __exit__(self, *_: object) -> None:
        from torch._dynamo.utils import counters

        digests[f"graphs of {list(digests)[-1]}"] = str(dict(counters["stats"]))


def sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = make()
    for block in list(model.blocks)[:2]:
        fully_shard(block)
    return fully_shard(model)


class Late(nn.Module):  # type: ignore[misc]
    """Compiles something in its fifth step: while it is traced."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 5:
            self.inner.compile(backend="aot_eager", fullgraph=True)
        return self.inner(tokens)  # type: ignore[no-any-return]


def main() -> None:
    run("plain", make())
    run("accumulated", make(), accumulated)
    run("evaluated", make(), evaluated)
    run("penalised", make(), penalised)
    run("carried", make(), Carried())
    run("threads", make(), threads)
    run("raising", make(), raising)
    run("hooked", hooked())
    for is_reentrant in (False, True):
        run(f"checkpointed {is_reentrant}", make(is_checkpointed=is_reentrant))
    for name, model in (
        ("in place", compiled_in_place()), ("block", compiled_block()), ("hooked", compiled_hooked()),
        ("late", Late(make())),
    ):  # fmt: skip
        with Graphs():
            run(f"compiled {name}", model)
    model = make()
    with Graphs():
        run("compiled whole", torch.compile(model, backend="aot_eager", fullgraph=True))
    model = make()
    with Graphs():
        run("compiled function", model, call=torch.compile(lambda x: model(x).relu(), backend="aot_eager"))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    run("replicated", nn.parallel.DistributedDataParallel(make()))
    run("sharded", sharded())
    torch.distributed.destroy_process_group()
    (folder / "digests").write_text(json.dumps(digests, indent=1))
    (folder / "left").write_text(json.dumps(left, indent=1))
    (folder / "told").write_text(json.dumps(told))


main()
