"""Run a script that knows nothing of it: `fault.py KIND@STEP:RANK,… SCRIPT …`, a fault an attempt, within that step."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

del sys.argv[0]
GO = ""
if sys.argv[0] == "--marks":  # what tests of several nodes give all scripts
    GO = f"go-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    del sys.argv[:2]
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
KIND, _, AT = (*sys.argv.pop(0).split(","), *[""] * 9)[ATTEMPT].partition("@")
done = int(os.environ.get("GUARDRUN_RESUME_STEP", "0"))


def count(optimizer: Optimizer, args: object, kwargs: object) -> None:
    global done
    done += 1


def suffer(module: torch.nn.Module, args: object) -> None:
    if not module.training or f"{done + 1}:{os.environ['RANK']}" != AT:
        return
    while GO and not os.path.exists(GO):  # a head hears of other nodes' ranks once a second
        time.sleep(0.01)
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    raise ValueError("sample 99 is no image")


if KIND:
    register_optimizer_step_post_hook(count)
    register_module_forward_pre_hook(suffer)
runpy.run_path(sys.argv[0], run_name="__main__")
