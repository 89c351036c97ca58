"""Hangs that are hard to look at: `odd.py KIND`, one all_reduce a step, the hang at step 20 of the first attempt."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from guardrun.hooks import step as count_step

KIND, STEPS, AT = sys.argv[1], 60, 20
RANK = int(os.environ["RANK"])
IS_FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
THREADS = 1500


def wait_for_answer() -> None:
    threading.Event().wait()


def wait_for_licence() -> None:
    threading.Event().wait()


def hang() -> None:
    if KIND == "threads" and RANK == 1:
        for _ in range(THREADS):
            threading.Thread(target=wait_for_licence, daemon=True).start()
        wait_for_answer()
    elif KIND == "all":
        wait_for_answer() if RANK else wait_for_licence()
    elif KIND == "two":
        os.kill(os.getpid(), signal.SIGSTOP) if RANK else wait_for_answer()
    elif KIND in ("one", "path") or (KIND == "restart" and RANK == 1):
        wait_for_answer()


if KIND == "restart" and not IS_FIRST and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" and RANK == 0:
    wait_for_licence()
dist.init_process_group("gloo")
for step in range(1, STEPS + 1):
    dist.all_reduce(torch.ones(4))
    count_step(step)
    time.sleep(0.02)
    if step == AT and IS_FIRST:
        hang()
dist.destroy_process_group()
