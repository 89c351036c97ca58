"""Trains; a rank that was forked from a warm process falls before its first step, as a library may that stands no fork.

Rank 1 of the first attempt kills itself once there is a file `go`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from guardrun import hooks


def main() -> None:
    is_first, is_second_rank = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"] == "1"
    if is_second_rank and any(type(finder).__module__ == "guardrun.hooks.warm.stash" for finder in sys.meta_path):
        os.kill(os.getpid(), signal.SIGSEGV)
    done, steps = 0, 3
    while is_first or done < steps:
        hooks.step()
        torch.ones(1).sum()
        done += 1
        time.sleep(0.05)
        if is_first and is_second_rank and os.path.exists("go"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
