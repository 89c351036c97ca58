"""What is left of a Slurm job of guardrun's when it is over on a node: found, ended, told. Never fails.

Slurm ends a job's processes by itself where it tracks them well (proctrack/cgroup); elsewhere some escape. Ended is
only what bears both marks in the environment it was started with, guardrun's own and this job's number, and belongs to
the job's user: never another job's, nor what a person has started on the node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from guardrun.slurm.node_hooks.node_log import log_line, note
from guardrun.supervisor.collect.host.process_table import (
    MARK_NAME,
    ProcessTable,
    end_processes,
    parse_environ,
    read_environ,
)
from guardrun.supervisor.collect.host.procfs import read_cmdline

TIMEOUT_S = 10.0
ROUND_S = 2.0
PART = "epilog"


class Left(NamedTuple):
    """A process of a job that is over."""

    pid: int
    start: int
    command: str


class Swept(NamedTuple):
    """What the epilog found."""

    ended: list[Left]
    remaining: list[Left]
    """Not even SIGKILL ended these."""


def run_epilog(environ: Mapping[str, str]) -> int:
    """Answer 0, always: an epilog that fails drains its node."""
    job, user = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_UID", "") or environ.get("SLURM_UID", "")
    try:
        if not (job.isdigit() and user.isdigit()):
            log_line(PART, "nothing done: SLURM_JOB_ID and SLURM_JOB_UID are not set", "warning")
            return 0
        swept = sweep(job, int(user), environ.get("SLURMD_NODENAME", ""))
        if swept.ended or swept.remaining:
            _report_swept(job, swept)
    except Exception as error:
        log_line(PART, f"not done: {type(error).__name__}: {error}", "warning")
    return 0


def sweep(job: str, uid: int, node: str, timeout_s: float = TIMEOUT_S) -> Swept:
    """End what is left of a job here, until nothing is, or time is up."""
    deadline_s = time.monotonic() + timeout_s
    ended: dict[tuple[int, int], Left] = {}
    while left := find_left(job, uid, node):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        ended |= {(one.pid, one.start): one for one in left}
        end_processes([(one.pid, one.start) for one in left], min(ROUND_S, left_s))
    still = {(one.pid, one.start) for one in left}
    return Swept([one for key, one in ended.items() if key not in still], left)


def find_left(job: str, uid: int, node: str) -> list[Left]:
    """Live processes of a user that guardrun started in this job. node: Slurm's name for it; empty: any."""
    found: list[Left] = []
    for stat in ProcessTable.read().stats.values():
        try:
            owner = os.stat(f"/proc/{stat.pid}").st_uid
        except OSError:
            continue
        if stat.is_dead or stat.ppid == 0 or owner != uid or stat.pid == os.getpid():
            continue
        marks = parse_environ(read_environ(stat))
        is_here = not node or marks.get("SLURMD_NODENAME", node) == node
        if MARK_NAME in marks and marks.get("SLURM_JOB_ID") == job and is_here:
            # The memory map of one in D may be locked for as long as it waits.
            command = [stat.comm] if stat.state == "D" else read_cmdline(stat.pid, 400) or [stat.comm]
            found.append(Left(stat.pid, stat.start, " ".join(command)[:200]))
    return found


def _report_swept(job: str, swept: Swept) -> None:
    parts = []
    if swept.ended:
        parts.append(f"ended {_names(swept.ended)}")
    if swept.remaining:
        parts.append(f"could not end {_names(swept.remaining)}")
    text = f"Slurm job {job} is over here and had left processes behind: {'; '.join(parts)}."
    log_line(PART, text, "warning" if swept.remaining else "info", job=job)
    data = {"ended": [one.pid for one in swept.ended], "remaining": [one.pid for one in swept.remaining]}
    if why := note(job, "epilog_swept", text, data):
        log_line(PART, f"not in the node's history: {why}")


def _names(left: list[Left]) -> str:
    names = ", ".join(f"{one.pid} ({one.command[:60]})" for one in left[:4])
    return names + (f" and {len(left) - 4} more" if len(left) > 4 else "")
