"""Signals that say the job is about to end, and leave the ranks time to save: which they are, and who hears them.

Under Slurm SIGTERM is one: it comes before SIGKILL, by GraceTime at a preemption and by KillWait at a time limit.
Signals that the user gives to torchrun's own --signals-to-handle keep torchrun's meaning.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from guardrun.launcher.base.signals import DEFAULT_SIGNALS, parse_signals
from guardrun.supervisor.config import Config
from guardrun.supervisor.engine.model.events import Rank


def choose_notices(config: Config, torch_signals: str, environ: Mapping[str, str]) -> list[signal.Signals]:
    """The signals that are notices. torch_signals: --signals-to-handle."""
    table = config.preemption
    is_wanted = table.sigterm == "always" or (table.sigterm == "slurm" and bool(environ.get("SLURM_JOB_ID")))
    # With [policy] act = false nobody would stop the ranks.
    is_term = is_wanted and config.policy.act
    found = _own([*table.signals, *(["TERM"] if is_term else [])], torch_signals)
    # What this process was told to ignore, its ranks ignore, as under torchrun. (Under Slurm they do in any case.)
    return [signum for signum in found if environ.get("SLURM_JOB_ID") or signal.getsignal(signum) != signal.SIG_IGN]


def _own(names: Iterable[str], torch_signals: str) -> list[signal.Signals]:
    """Those that are not given to torchrun's way of handling signals by the user's own word."""
    theirs = parse_signals(torch_signals or DEFAULT_SIGNALS)
    asked = [] if set(theirs) == set(parse_signals(DEFAULT_SIGNALS)) else theirs
    found = parse_signals(",".join(name if name.startswith("SIG") else f"SIG{name}" for name in names))
    return [signum for signum in found if signum not in asked]


def spared_signals(table: Mapping[str, Any], environ: Mapping[str, str]) -> list[int]:
    """Those that the ranks are to outlive: Slurm may send them to every process of a job. table: [preemption]."""
    if not environ.get("SLURM_JOB_ID") or table.get("forward"):
        return []
    return [int(signum) for signum in _own(table.get("signals", []), "") if signum != signal.SIGTERM]


def parse_caught(status: str) -> int:
    """SigCgt of /proc/PID/status: bit N-1 is set where the process has a handler for signal N."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16)
    return 0


def catches(pid: int, signum: signal.Signals) -> bool:
    """Say whether a process has a handler of its own for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return bool(parse_caught(file.read()) & 1 << (signum - 1))
    except (OSError, ValueError, IndexError):
        return False


def give(ranks: Iterable[Rank], signum: signal.Signals) -> None:
    """Send a signal to the ranks alone: their data workers have no handler for it, and would die."""
    for rank in ranks:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(rank.pid, signum)
