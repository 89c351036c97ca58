"""A light training over gloo; one rank may hang once, in attempt 0, and notes when. Each rank notes its first line."""

import time

first_ns = time.monotonic_ns()

import argparse  # noqa: E402
import ctypes  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402

from benchmarks.scripts.moments import ATTEMPT, RANK, note  # noqa: E402

note("first", first_ns)

parser = argparse.ArgumentParser()
parser.add_argument("--hang", default="", help="rank_blocked, rank_stopped, rank_spinning, gil_held or init")
parser.add_argument("--hang-at", type=int, default=60, metavar="STEP")
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--nice", type=int, default=0)
arguments = parser.parse_args()
os.nice(arguments.nice)


def fetch_sample() -> None:
    """A request without a timeout."""
    time.sleep(3600)


def wait_for_flag() -> None:
    """A condition that never becomes true."""
    polls = 0
    while not os.environ.get("FLAG_THAT_NOBODY_SETS"):
        polls += 1


HANGS = {
    "rank_blocked": fetch_sample,
    "rank_stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "rank_spinning": wait_for_flag,
    "gil_held": lambda: ctypes.PyDLL(None).sleep(3600),
    "init": fetch_sample,
}


def hang(cause: str) -> None:
    """Hang where it is this rank's turn."""
    if arguments.hang == cause and ATTEMPT == 0 and RANK == 1:
        note("hung")
        HANGS[cause]()


import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    hang("init")
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    step = 0
    while True:  # until the benchmark ends it
        step += 1
        time.sleep(arguments.step_s)
        if step == arguments.hang_at:
            note("training")
            if arguments.hang and arguments.hang != "init":
                hang(arguments.hang)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
