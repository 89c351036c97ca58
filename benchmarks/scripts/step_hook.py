"""What the hooks add to optimizer.step(), in a rank of guardrun: steps with them and without, in turns; prints JSON.

The optimizer does nothing, so that what torch itself and the hooks do around its step is all there is.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--blocks", type=int, default=60)
parser.add_argument("--steps", type=int, default=2000, help="a block")
arguments = parser.parse_args()


class Still(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not followed
    """Changes nothing."""

    def step(self, closure: Any = None) -> None:
        pass


def time_steps(still: Still, steps: int) -> list[int]:
    """Nanoseconds of each step, the clock's own included."""
    taken = []
    for _ in range(steps):
        began = time.perf_counter_ns()
        still.step()
        taken.append(time.perf_counter_ns() - began)
    return taken


def main() -> None:
    still = Still([torch.zeros(1)], {})
    # torch's table of global hooks; its own functions can add to it, and take back only what one has added oneself.
    table = torch_optimizer._global_optimizer_post_hooks
    hooks = dict(table)
    time_steps(still, arguments.steps)
    with_ns, without_ns = [], []
    for _ in range(arguments.blocks):
        table.update(hooks)
        with_ns.append(time_steps(still, arguments.steps))
        table.clear()
        without_ns.append(time_steps(still, arguments.steps))
    print("result:", json.dumps({"hooks": len(hooks), "with_ns": with_ns, "without_ns": without_ns}), flush=True)


main()
