"""What the hooks take of a rank's CPU in the middle of training, where their code and data are in no cache any more.

Both ranks train a DDP model over gloo on one core, steps of some 5 ms. Of each step two stretches are timed by the
thread's own CPU clock: from the call of backward() until torch's own begins, and what torch calls when an optimizer has
stepped. Beside each stands the same stretch of a function that does nothing. Rank 0 prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from time import process_time_ns, thread_time_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

from benchmarks.scripts.turns import stay_on

WIDTH, BATCH, WARM_UP = 256, 200, 400
"""Steps before it is measured: by then guardrun knows how long they are."""

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--core", type=int, default=-1, help="where both ranks run; -1: anywhere")
arguments = parser.parse_args()


def timed(call: Callable[..., Any], taken: list[int]) -> Callable[..., Any]:
    """The same, with what it takes noted. The clock is read twice before: it may be in no cache, too."""

    def run(*args: Any) -> None:
        thread_time_ns()
        began_ns = thread_time_ns()
        call(*args)
        taken.append(thread_time_ns() - began_ns)

    return run


class Prefix:
    """What a wrapper of Tensor.backward() does before it calls the original."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._began_ns = 0
        wrapper = torch.Tensor.backward
        self._original: Any = getattr(wrapper, "__wrapped__", wrapper)
        for cell in wrapper.__closure__ or ():
            if cell.cell_contents is self._original:
                cell.cell_contents = self._note

    def start(self) -> None:
        """backward() is called next."""
        thread_time_ns()
        self._began_ns = thread_time_ns()

    def _note(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self.taken.append(thread_time_ns() - self._began_ns)
        return self._original(tensor, *args, **kwargs)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    batch = torch.randn(BATCH, WIDTH)
    stay_on(arguments.core)
    hooks = list(torch_optimizer._global_optimizer_post_hooks.values())
    torch_optimizer._global_optimizer_post_hooks.clear()
    stepped_ns: list[int] = []
    nothing_ns: list[int] = []
    idle_ns: list[int] = []
    prefix = Prefix()

    def call_hooks(*args: Any) -> None:
        for hook in hooks:
            hook(*args)

    stepped, nothing, idle = timed(call_hooks, stepped_ns), timed(len, nothing_ns), timed(len, idle_ns)
    began_ns = process_time_ns()
    for step in range(WARM_UP + arguments.steps):
        if step == WARM_UP:
            for taken in (stepped_ns, nothing_ns, idle_ns, prefix.taken):
                taken.clear()
            began_ns = process_time_ns()
        loss = model(batch).square().mean()
        idle("")
        prefix.start()
        loss.backward()
        optimizer.step()
        nothing("")
        stepped(optimizer, (), {})
        optimizer.zero_grad()
    step_ns = (process_time_ns() - began_ns) / arguments.steps
    if dist.get_rank() == 0:
        told = {
            "hooks": len(hooks), "step_ns": step_ns, "backward_ns": prefix.taken, "no_backward_ns": idle_ns,
            "stepped_ns": stepped_ns, "not_stepped_ns": nothing_ns,
        }  # fmt: skip
        print("result:", json.dumps(told), flush=True)
    dist.barrier()
    os._exit(0)


main()
