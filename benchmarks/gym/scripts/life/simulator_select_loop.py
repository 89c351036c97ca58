"""Each rank drives a simulator over a socketpair and selects on it in short turns; one episode is long."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SIMULATOR = """
import socket, struct, sys, time
s = socket.socket(fileno=int(sys.argv[1]))
number = 0
while action := s.recv(8):
    number += 1
    time.sleep(float(sys.argv[2]) if number == 30 else 0.01)
    s.sendall(struct.pack("d", 1 - struct.unpack("d", action)[0] ** 2 / number))
"""


class Simulator:
    def __init__(self, long_episode: float) -> None:
        self.sock, child = socket.socketpair()
        command = [sys.executable, "-c", SIMULATOR, str(child.fileno()), str(long_episode)]
        self.process = subprocess.Popen(command, pass_fds=[child.fileno()])
        child.close()

    def play(self, action: float) -> float:
        self.sock.sendall(struct.pack("d", action))
        idle = 0
        while not select.select([self.sock], [], [], 0.2)[0]:
            idle += 1
        if idle:
            print("that was a long episode", flush=True)
        return struct.unpack("d", self.sock.recv(8))[0]

    def close(self) -> None:
        self.sock.close()
        self.process.wait()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    simulator = Simulator(SECONDS if dist.get_rank() == 0 else 0.01)
    mean = torch.tensor(2.0)
    rewards = []
    try:
        for _ in range(60):
            reward = torch.tensor(simulator.play(mean.item()), dtype=torch.float32)
            dist.all_reduce(reward)
            mean -= 0.02 * mean
            rewards.append(f"{reward.item():.4f}")
    finally:
        simulator.close()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/rewards.txt", "w") as f:
            f.write("\n".join(rewards))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
