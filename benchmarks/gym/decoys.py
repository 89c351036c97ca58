"""The decoys: what takes long and is well. None lasts longer than LONGEST_S."""

from __future__ import annotations

import math

from benchmarks.gym.case import Chain, Decoy, Workload

DDP, FSDP, GROUPS, LOADER = Workload.DDP, Workload.FSDP, Workload.GROUPS, Workload.LOADER
ALL = (0, 1)

DECOYS = (
    Decoy("long_eval", DDP, "rank 0 evaluates, the rest wait at a barrier", seconds=38),
    Decoy("long_save", DDP, "rank 0 writes a large checkpoint", seconds=35),
    Decoy("first_step", DDP, "a slow first step of all ranks", seconds=25, planted_in=ALL),
    Decoy("compile", DDP, "compilers work in subprocesses, one after another", seconds=35),
    Decoy("prepare", DDP, "one rank builds an index in Python", seconds=38, planted_in=(1,)),
    Decoy("data_pause", DDP, "all ranks pause", seconds=25, planted_in=ALL),
    Decoy("idle_pause", DDP, "rank 0 pauses, without a sign of life", seconds=24),
    Decoy("short_gc", DDP, "a collection of less than a second", seconds=0.4),
    Decoy("slower_steps", DDP, "steps that get slower and slower", seconds=8, planted_in=ALL),
    Decoy("brief_stop", DDP, "SIGSTOP, and SIGCONT a second later", seconds=1.0),
    Decoy("tokenizer", DDP, "one rank waits for a subprocess that works", seconds=38, planted_in=(1,)),
    Decoy("download", DDP, "rank 0 receives bytes slowly", seconds=38),
    Decoy("long_load", DDP, "a checkpoint that takes long to load", seconds=30, planted_in=ALL),
    Decoy("fsdp_eval", FSDP, "rank 0 computes metrics, the rest wait", seconds=36),
    Decoy("uneven", GROUPS, "a stage that takes longer than the others", seconds=0.8, planted_in=(3,)),
    Decoy("slow_workers", LOADER, "workers that need long for each sample", seconds=2.5, planted_in=ALL),
    Decoy("worker_pause", LOADER, "a worker pauses once", seconds=28, planted_in=(1,)),
)

LONGEST_S = max(decoy.seconds for decoy in DECOYS)

_ONCE = ("first_step", "long_load", "slower_steps", "slow_workers")
"""What comes at the start, or in every step from then on."""
_LINKS = tuple(decoy for decoy in DECOYS if decoy.workload in (DDP, LOADER) and decoy.name not in _ONCE)
_BETWEEN_S = 3.0
"""What Chain.steps_apart steps take at least."""
HOUR = Chain(
    "hour",
    LOADER,
    "all that can come again and again, for an hour",
    seconds=3600,
    planted_in=ALL,
    links=_LINKS,
    rounds=math.ceil(3600 / sum(decoy.seconds + _BETWEEN_S for decoy in _LINKS)),
)
