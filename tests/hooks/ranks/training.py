"""A rank that trains in all ways that the optimizer and data loader hooks have to see; prints what they counted."""

from __future__ import annotations

import json
import threading

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset

from guardrun.hooks.rank import rank
from guardrun.hooks.wire.board import Field

seen: dict[str, list[int]] = {}


def note(name: str, *fields: Field) -> None:
    assert rank.active is not None
    seen[name] = [rank.active.words[field] for field in fields]


class Nested(Dataset):  # type: ignore[misc]  # torch is not followed by mypy
    """Reads from a data loader of its own."""

    def __init__(self) -> None:
        self.inner = iter(DataLoader(range(100)))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        note("inside", Field.DATA_SINCE_NS)
        return next(self.inner)


def train_step(*optimizers: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()


model = torch.nn.Linear(4, 4)

per_parameter = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
for _ in range(3):
    train_step(*per_parameter)
note("one for each parameter", Field.STEP, Field.PULSES)

for _ in range(20):  # Made and forgotten: the same addresses come again and again.
    train_step(torch.optim.SGD(model.parameters(), lr=0.1))
note("short-lived", Field.STEP, Field.PULSES)

main = torch.optim.AdamW(model.parameters())
for _ in range(5):
    train_step(main)
note("another", Field.STEP, Field.PULSES)

heard: list[str] = []
register_optimizer_step_pre_hook(lambda *_: heard.append("before"))
register_optimizer_step_post_hook(lambda *_: heard.append("after"))
model.zero_grad()
get_state_dict(model, torch.optim.AdamW(model.parameters()))  # has it step without gradients
assert heard == ["before", "after"]
note("given a state to load into", Field.STEP, Field.PULSES)
assert rank.active is not None
rank.active.saving_ident = threading.get_ident()  # as in a function of save_with()
get_state_dict(model, torch.optim.SGD(model.parameters(), lr=0.1))
rank.active.saving_ident = 0
assert heard == ["before", "after"], "it has not stepped"
train_step(main)
note("and on", Field.STEP, Field.PULSES)
assert heard == ["before", "after"] * 2

compiled = torch.compile(model, backend="eager")
for _ in range(2):
    compiled(torch.ones(2, 4)).sum().backward()
    main.step()
compiled_step = torch.compile(main.step, backend="eager")
compiled_step()
note("compiled", Field.STEP, Field.PULSES)

assert sum(1 for _ in DataLoader(range(10), batch_size=2)) == 5
note("batches", Field.BATCHES, Field.DATA_SINCE_NS)
assert sum(1 for _ in DataLoader(range(4), num_workers=2)) == 4
note("with workers", Field.BATCHES)
assert sum(1 for _ in DataLoader(Nested(), batch_size=None)) == 4
note("nested", Field.BATCHES)
prefetching = threading.Thread(target=lambda: list(DataLoader(Nested(), batch_size=None)))
prefetching.start()
prefetching.join()
note("in a thread", Field.BATCHES)

print(json.dumps(seen))
