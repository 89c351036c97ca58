"""A training that does what files of its folder say: rank 1 suffers what `command` names until the test lets it go."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
COMMAND = Path("command")


def fetch_vocabulary_update() -> None:
    """A request without a timeout: a pipe that nobody writes to yet."""
    with open("gate") as gate:
        gate.read()


def wait_for_flag() -> None:
    """A condition that does not become true by itself."""
    with open("flag", "r+b") as file:
        flag = mmap.mmap(file.fileno(), 1)
    polls = 0
    while flag[0] == 48:
        polls += 1


def hold_the_gil() -> None:
    """The same pipe, opened by C code that keeps the GIL."""
    libc = ctypes.PyDLL(None)
    libc.close(libc.open(b"gate", os.O_RDONLY))


def go_astray() -> None:
    dist.barrier(other)


dist.init_process_group("gloo")
other = dist.new_group([0, 1])
done = 0
while not Path("end").exists():
    if RANK == 1 and COMMAND.exists():
        fault = COMMAND.read_text()
        COMMAND.unlink()
        Path("begun").touch()
        {"block": fetch_vocabulary_update, "spin": wait_for_flag, "gil": hold_the_gil, "astray": go_astray}[fault]()
        Path("begun").unlink()
    over = torch.tensor([float(Path("end").exists())])
    dist.all_reduce(over)
    done += 1
    if done == 3:
        os.write(1, f"rank {RANK} trains\n".encode())
    time.sleep(0.05)
    if over.item():
        break
