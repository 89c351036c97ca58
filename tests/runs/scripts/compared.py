"""A short training that comes out the same each time; tests change one line of a copy, and compare.

Usage: compared.py STEPS LR STOP; it ends when there is a file STOP.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, LR = int(sys.argv[1]), float(sys.argv[2])
LATER = 10
FACTOR = 1.0

torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=3))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=LR)

step = 0
while step < STEPS:
    for inputs, wanted in loader:
        if step == STEPS:
            break
        loss = (model(inputs) - wanted).square().mean() * (FACTOR if step >= LATER else 1.0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
while not os.path.exists(sys.argv[3]):
    time.sleep(0.05)
dist.destroy_process_group()


# As let_go of faults.py, which a copy of this script does not have beside it.
def at_work(task: Path) -> bool:
    try:
        name, _, state = (task / "stat").read_text().rpartition(")")
    except OSError:
        return False
    return "gloo" in name and state.split()[0] != "S"


while any(map(at_work, Path("/proc/self/task").iterdir())):
    time.sleep(0.001)
