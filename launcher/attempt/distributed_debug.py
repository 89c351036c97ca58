"""TORCH_DISTRIBUTED_DEBUG=DETAIL: tried out before ranks are given it.

With it torch compares the collectives of all ranks as they are issued, and names the first that differ. But some
versions of torch do not survive it: with 2.13.0, DistributedDataParallel's constructor ends in a segmentation fault,
with one rank and without guardrun too. A fork of this process, which has torch imported, takes a tenth of a second to
find out.
"""

from __future__ import annotations

import os
import resource
import signal
import time

from guardrun.launcher.base.rank_environment import DEBUG

LIMIT_S = 5.0
POLL_S = 0.01


def survives_detail() -> bool:
    """Whether DDP can be made, and can train a step, under DETAIL with this torch (gloo, one rank)."""
    pid = os.fork()
    if pid == 0:
        _try_out()
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _try_out() -> None:
    """In the child: leave no trace but the exit status."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.environ[DEBUG] = "DETAIL"

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.set_debug_level_from_env()
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        model(torch.zeros(1, 1)).sum().backward()
        dist.barrier()
        os._exit(0)
    finally:
        os._exit(1)
