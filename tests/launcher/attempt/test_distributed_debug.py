"""DETAIL is tried out in a fork: what that says is what a process of its own would meet."""

from __future__ import annotations

import os
import subprocess
import sys

PLAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
model(torch.zeros(1, 1)).sum().backward()
dist.barrier()
dist.destroy_process_group()
"""
TRY = """
import torch.distributed.run
from guardrun.launcher.attempt.attempt_start import survives_detail
print(survives_detail())
"""


def test_the_fork_says_what_a_process_of_its_own_meets() -> None:
    environ = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    plain = subprocess.run([sys.executable, "-c", PLAIN], env=environ, capture_output=True, timeout=120, check=False)
    tried = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, timeout=120, check=False)
    assert tried.stdout == f"{plain.returncode == 0}\n"
    assert tried.stderr == "", "the fork leaves no word"
