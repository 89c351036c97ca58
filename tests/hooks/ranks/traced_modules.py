"""Modules that something else looks into as well: what compiles, exports, traces, counts, or replays what they call.

Prints what was seen: graphs and their ends, bits, warnings. It has to be the same with hooks and without.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

STEPS = 25
"""Every tenth is looked at."""
torch.set_num_threads(1)
seen: dict[str, Any] = {}


class Block(nn.Module):  # type: ignore[misc]  # mypy skips torch
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.relu, self.outer = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.relu(self.inner(x)))  # type: ignore[no-any-return]


def make() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4))


def train(model: Any, call: Callable[[torch.Tensor], torch.Tensor] | None = None) -> str:
    """A digest of the parameters after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        loss = (call or model)(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()


def record(name: str, act: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = act()
    graphs = [dict(counters["stats"]), len(counters["graph_break"])]
    seen[name] = [found, graphs, sorted({str(one.message) for one in told})]


def compiled_whole() -> str:
    return train(torch.compile(make(), backend="aot_eager", fullgraph=True))


def compiled_in_place() -> str:
    model = make()
    model.compile(backend="aot_eager", fullgraph=True)
    return train(model)


def compiled_block() -> str:
    model = make()
    model[1] = torch.compile(model[1], backend="aot_eager")
    return train(model)


def compiled_function() -> str:
    model = make()
    return train(model, torch.compile(lambda x: model(x).relu(), backend="aot_eager", fullgraph=True))


def hooked_by_others() -> str:
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
    try:
        return train(torch.compile(make(), backend="aot_eager"))
    finally:
        handle.remove()


def exported() -> str:
    return str(torch.export.export(make(), (torch.ones(2, 8),)).graph)


def traced() -> str:
    return str(torch.jit.trace(make(), torch.ones(2, 8)).inlined_graph)


def made_fx() -> str:
    model = make()
    return str(make_fx(model)(torch.ones(2, 8)).graph)


def symbolically_traced() -> str:
    return str(torch.fx.symbolic_trace(make()).graph)


def counted() -> list[int]:
    model, totals = make(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(2, 8)).sum().backward()
        totals.append(counter.get_total_flops())
        optimizer.step()
    return totals


def checkpointed(*, is_selective: bool) -> str:
    def choose(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        is_dear = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE

    model, more = make(), {}
    if is_selective:
        more["context_fn"] = functools.partial(create_selective_checkpoint_contexts, choose)

    def call(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False, **more)
        return x

    return train(model, call)


def main() -> None:
    for act in (
        compiled_whole, compiled_in_place, compiled_block, compiled_function, hooked_by_others,
        exported, traced, made_fx, symbolically_traced, counted,
    ):  # fmt: skip
        record(act.__name__, act)
    for is_selective in (False, True):
        record(f"checkpointed {is_selective}", functools.partial(checkpointed, is_selective=is_selective))
    print(json.dumps(seen))


main()
