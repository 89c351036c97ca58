"""A monitor thread reads /proc through psutil all the time while rank 0 sleeps before it goes on."""

# needs: psutil
from __future__ import annotations

import os
import threading
import time

import psutil
import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
stop = threading.Event()
peak = 0


def monitor() -> None:
    global peak
    me = psutil.Process()
    while not stop.wait(0.02):
        with me.oneshot():
            peak = max(peak, me.memory_info().rss)
            me.cpu_times()
            me.num_threads()
            me.status()
        psutil.virtual_memory()


torch.set_num_threads(1)
dist.init_process_group("gloo")
watcher = threading.Thread(target=monitor, daemon=True)
watcher.start()
torch.manual_seed(0)
a = torch.randn(16, 16, requires_grad=True)
optimizer = torch.optim.Adagrad([a], lr=0.1)
for i in range(70):
    if i == 35 and dist.get_rank() == 0:
        time.sleep(SECONDS)
    loss = (a @ a.T - torch.eye(16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(a.grad)
    optimizer.step()
stop.set()
watcher.join()
if dist.get_rank() == 0:
    print(f"peak memory: {peak >> 20} MiB")
    os.makedirs("out", exist_ok=True)
    with open("out/loss.txt", "w") as f:
        f.write(f"{loss.item():.4f}")
dist.barrier()
dist.destroy_process_group()
