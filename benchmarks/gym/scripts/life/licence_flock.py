"""The only licence is in use: rank 0 blocks in flock until the other program ends, the others at a barrier."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
HOLDER = (
    "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    "print('held', flush=True); time.sleep(float(sys.argv[2]))"
)

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(3)

net = torch.nn.Linear(300, 300)
optimizer = torch.optim.Adam(net.parameters())


def epoch() -> None:
    for _ in range(30):
        loss = net(torch.rand(64, 300)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        time.sleep(0.005)


epoch()

if dist.get_rank() == 0:
    with tempfile.NamedTemporaryFile(suffix=".lic") as licence:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, licence.name, str(SECONDS)], stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout.readline() == "held\n"
        print("waiting for a licence", flush=True)
        fcntl.flock(licence, fcntl.LOCK_EX)
        print("got the licence", flush=True)
        fcntl.flock(licence, fcntl.LOCK_UN)
        holder.wait()
dist.barrier()

epoch()

if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    torch.save(net.state_dict(), "out/net.pt")
dist.barrier()
dist.destroy_process_group()
