"""An operator has paused the job: every rank sits in sigtimedwait until SIGUSR1 says that it may go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
net = torch.nn.Bilinear(40, 40, 40)
for parameter in net.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


def epoch() -> str:
    for _ in range(25):
        x, y = torch.randn(2, 16, 40)
        loss = (net(x, y) - x * y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(0.01)
    return f"{loss.item():.3f}"


def paused() -> None:
    delay = SECONDS if rank else SECONDS / 2
    operator = subprocess.Popen(["sh", "-c", f"sleep {delay:.2f}; kill -USR1 {os.getpid()}"])
    while signal.sigtimedwait({signal.SIGUSR1}, 1.0) is None:
        pass
    operator.wait()


losses = [epoch(), epoch()]
paused()
losses.append(epoch())
os.makedirs("out", exist_ok=True)
with open(f"out/losses{rank}", "w") as f:
    f.write(" ".join(losses))
dist.barrier()
dist.destroy_process_group()
