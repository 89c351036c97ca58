"""What a rank tells of what it trains with, and others of its kind."""

from __future__ import annotations

import copy
from typing import Any

STATE: dict[str, Any] = {
    "step": 812,
    "troubles": {},
    "at_step_trouble": "",
    "at_step": {
        "step": 812,
        "optimizer": "AdamW",
        "autocast": False,
        "scales": ["65536.0"],
        "gradients": [
            {"group": "layers.3", "norm": 0.0, "count": 2, "nonfinite": 1},
            {"group": "head", "norm": 1.25, "count": 4, "nonfinite": 0},
        ],
        "gradient_groups": 9,
        "gradient_norm": 1.25,
        "gradient_nonfinite": 1,
    },
    "optimizers": [
        {
            "type": "AdamW",
            "group_count": 3,
            "groups": [{"parameters": 6, "numbers": 3362, "lr": 0.0003, "betas": [0.9, 0.95], "fused": None}],
        }
    ],
    "models": [
        {
            "type": "DistributedDataParallel",
            "parameters": 6,
            "numbers": 3362,
            "trained": 3282,
            "bytes_here": 13776,
            "dtypes": {"float32": 3362},
            "devices": {"cuda:0": 3362},
            "modules": 5,
            "in_training": 4,
            "wrapped": {"DistributedDataParallel": 1},
            "ddp": {"static_graph": False},
        }
    ],
    "loaders": [
        {"dataset": "Text", "batch_size": 4, "prefetch_factor": None, "sampler": {"type": "Shuffled", "rank": 0}}
    ],
    "scalers": [{"type": "GradScaler", "enabled": True}],
    "largest": [{"bytes": 6400, "owner": "parameter w", "kind": "float32[40x40]", "device": "cuda:0"}],
    "groups": [{"name": "0", "backend": "nccl", "ranks": 16, "of": [0, 1, 2]}],
    "settings": {"torch": "2.13.0", "initial_seed": 3},
    "compiled": {"modules": 0, "graphs": 0, "breaks": 0},
    "threads": {"python": 1, "all": 40, "of": [{"name": "MainThread", "daemon": False, "where": "wait (x.py:3)"}]},
    "environment": {"NCCL_DEBUG": "WARN", "RANK": "0"},
}


def changed(**changes: Any) -> dict[str, Any]:
    """`optimizers__0__groups__0__lr=0.1`."""
    one = copy.deepcopy(STATE)
    for path, value in changes.items():
        *names, last = path.split("__")
        at: Any = one
        for name in names:
            at = at[int(name) if isinstance(at, list) else name]
        at[last] = value
    return one
