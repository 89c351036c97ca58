"""A rank of one over gloo that prints the same with and without hooks; what it sees of these goes to argv[1]."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist

ALL_BLOCKED = (1 << 64) - 1 & ~(1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1)


def is_a_socket(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


def look_in_child(fd: int) -> None:
    with open(f"{sys.argv[1]}-child", "w") as file:
        json.dump({"is a socket": is_a_socket(fd)}, file)


def threads() -> list[dict[str, str]]:
    """The worker server's: it makes its pool once it runs itself.

    One that is still being made has the C library's own mask for that, not its own.
    """
    count, end_s = max(8, (os.cpu_count() or 1) - 1) + 1, time.monotonic() + 30
    while True:
        found = find_threads()
        are_made = len(found) >= count and all(int(each["SigBlk"], 16) != ALL_BLOCKED for each in found)
        if are_made or time.monotonic() > end_s:
            return found
        time.sleep(0.01)


def find_threads() -> list[dict[str, str]]:
    found = []
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/status") as file:
            found.append(dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line))
    return [each for each in found if each["Name"] == "pt_workerserver"]


dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}-store", rank=0, world_size=1)
dist.new_group([0])
dist.all_reduce(torch.ones(2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
print("trained")
sys.stderr.write("to stderr\n")
warnings.warn("a warning", stacklevel=1)

if "guardrun.hooks.rank.rank" in sys.modules:
    active = sys.modules["guardrun.hooks.rank.rank"].active
    while active.recorder_fd < 0:  # The test asks for it.
        time.sleep(0.01)
    seen = {"fd": active.recorder_fd, "is a socket": is_a_socket(active.recorder_fd), "threads": threads()}
    child = multiprocessing.get_context("fork").Process(target=look_in_child, args=(active.recorder_fd,))
    child.start()
    child.join()
    seen["child"] = child.exitcode
    with open(sys.argv[1], "w") as file:
        json.dump(seen, file)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
