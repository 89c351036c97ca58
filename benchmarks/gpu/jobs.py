"""What the jobs of `make gpu-check` have in common."""

from __future__ import annotations

import json
import os
from pathlib import Path


def environment_of(ranks: int) -> dict[str, str]:
    """Of a job with so many ranks, which share the GPUs that there are."""
    import torch

    environment = {**os.environ, "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}
    if torch.cuda.device_count() < ranks:
        environment |= {"GPU_CHECK_SHARED": "1", "NCCL_SOCKET_IFNAME": "lo"}
    return environment


def said(folder: Path) -> list[str]:
    """What guardrun told of it: stalls, notes and incidents, as its log has them. folder: the job's, with `runs`."""
    found = []
    for log in sorted(folder.glob("runs/2*/guardrun.log")):
        for line in log.read_text().splitlines():
            told = json.loads(line)
            if told.get("event") == "said":
                found.append(str(told.get("text")))
    return found
