"""Rank 0 listens until a scheduler connects and opens the gate; it comes late, the others wait at a barrier."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SCHEDULER = (
    "import socket, sys, time; time.sleep(float(sys.argv[2])); "
    "s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'GO 13'); s.close()"
)


def gate() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER, str(port), str(SECONDS)])
        connection, _ = listener.accept()
    with connection:
        word, token = connection.recv(64).split()
    assert word == b"GO"
    scheduler.wait()
    return int(token)


def train(w: torch.Tensor, target: float) -> float:
    for _ in range(35):
        g = (w - target) / dist.get_world_size()
        dist.all_reduce(g)
        w -= 0.1 * g
        time.sleep(0.01)
    return w.mean().item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    w = torch.zeros(300, 300)
    means = [train(w, 1.0)]
    token = torch.tensor(gate() if dist.get_rank() == 0 else 0)
    dist.barrier()
    dist.broadcast(token, src=0)
    means.append(train(w, token.item()))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/means.txt", "w") as f:
            f.write(" ".join(f"{mean:.4f}" for mean in means))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
