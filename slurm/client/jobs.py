"""What Slurm says of a job: its state, its nodes, when it ends, and why it is being ended."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm, parse_fields
from guardrun.slurm.client.hostlist import HostlistError, parse_hostlist

_JOB_NAME = re.compile(r"^(.*? JobName=|JobName=)(.*?)( UserId=\S+\(\d+\) GroupId=.*)$", re.DOTALL)
_FAR_WALL_S = 253402300800.0
"""Year 9999: what Slurm's clock says beyond is no time."""

LIMIT_MARGIN_S = 90.0
"""Slurm looks at time limits every half minute, and sends --signal's up to a minute early."""


class StopCause(str, Enum):
    """Why Slurm is ending a job, or has."""

    PREEMPTED = "preempted"
    """Another job takes its nodes; `end_wall_s` says until when it has time."""
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    """A person wants the end (scancel): not to be requeued."""
    REQUEUED = "requeued"
    """Somebody has put it back into the queue: it will start again."""
    NODE_FAILED = "node_failed"
    NONE = ""
    """Slurm is not ending it, or does not say."""


class SlurmJob(NamedTuple):
    """A job, or a task of an array."""

    job_id: str
    array_job_id: str
    array_task_id: str
    name: str
    user: str
    state: str
    """RUNNING, PENDING, COMPLETING, CANCELLED, TIMEOUT, …"""
    reason: str
    """Slurm's word for it, as TimeLimit, BeginTime, JobHeldUser; empty for None."""
    partition: str
    nodes: tuple[str, ...]
    """Those that it has now: a node that went down under --no-kill is not among them."""
    batch_host: str
    """Where its batch script runs."""
    excluded: str
    """ExcNodeList as it stands there; empty for none."""
    node_count: int
    restarts: int
    may_requeue: bool
    """Not submitted with --no-requeue."""
    is_batch: bool
    """By sbatch; salloc's and srun's own cannot start again."""
    start_wall_s: float | None
    end_wall_s: float | None
    """When Slurm will end it, or has; None: it has no limit."""
    preempt_wall_s: float | None
    """When its nodes were promised to another job."""
    command: str
    work_dir: str
    stdout: str

    @property
    def job(self) -> str:
        """What Slurm's commands call it; an array's last task has the array's own number."""
        return f"{self.array_job_id}_{self.array_task_id}" if self.array_task_id else self.job_id

    @property
    def is_over(self) -> bool:
        """Whether it will not run again; a state that is not known here counts as over."""
        return self.state not in {"RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING"}


def read_job(job: str, slurm: Slurm | None = None) -> SlurmJob | Failure:
    """A job by what Slurm's commands call it (`5`, `5_3`). Blocks for the time limit at most."""
    answer = (slurm or Slurm.here()).run("scontrol", "show", "job", "-o", job)
    if isinstance(answer, Failure):
        return answer
    found = [parse_job(line) for line in answer.splitlines() if line.strip()]
    named = [one for one in found if job in (one.job, one.job_id)]
    if not named:
        return Failure(FailureKind.UNKNOWN, f"Slurm says nothing of job {job}")
    return named[0]


def parse_job(line: str) -> SlurmJob:
    """One line of `scontrol show job -o`, with times as seconds since the epoch (SLURM_TIME_FORMAT=%s)."""
    name = ""
    if match := _JOB_NAME.match(line):
        # A name may hold whatever its user likes, ` JobState=…` too.
        name, line = match[2], match[1].removesuffix("JobName=") + match[3]
    fields = parse_fields(line)

    def text(key: str) -> str:
        value = fields.get(key, "")
        return "" if value in ("(null)", "None", "N/A") else value

    return SlurmJob(
        job_id=text("JobId"),
        array_job_id=text("ArrayJobId"),
        array_task_id=text("ArrayTaskId") if text("ArrayTaskId").isdigit() else "",
        name=name,
        user=text("UserId").partition("(")[0],
        state=text("JobState").partition(" ")[0],
        reason=text("Reason"),
        partition=text("Partition"),
        nodes=_hosts(text("NodeList")),
        batch_host=text("BatchHost"),
        excluded=text("ExcNodeList"),
        node_count=_count(text("NumNodes")),
        restarts=_count(text("Restarts")),
        may_requeue=text("Requeue") != "0",
        is_batch=text("BatchFlag") != "0",
        start_wall_s=_time(text("StartTime")),
        end_wall_s=_time(text("EndTime")),
        preempt_wall_s=_time(text("PreemptTime")),
        command=text("Command"),
        work_dir=text("WorkDir"),
        stdout=text("StdOut"),
    )


def stop_cause(job: SlurmJob, own_restarts: int, now_wall_s: float) -> StopCause:
    """Why Slurm is ending a job that has just been given a signal.

    own_restarts: SLURM_RESTART_COUNT of whoever asks: Slurm counts a requeue as soon as it is ordered.
    """
    if job.preempt_wall_s is not None:
        return StopCause.PREEMPTED
    if job.state == "PREEMPTED":
        return StopCause.PREEMPTED
    if job.restarts > own_restarts:
        return StopCause.REQUEUED
    if job.state in ("TIMEOUT", "DEADLINE") or job.reason == "TimeLimit":
        return StopCause.TIME_LIMIT
    if job.state in ("NODE_FAIL", "BOOT_FAIL"):
        return StopCause.NODE_FAILED
    is_running = job.state in ("RUNNING", "CONFIGURING", "SUSPENDED")
    if is_running and job.end_wall_s is not None and job.end_wall_s - now_wall_s <= LIMIT_MARGIN_S:
        return StopCause.TIME_LIMIT
    if job.state in ("COMPLETING", "CANCELLED"):
        return StopCause.CANCELLED
    return StopCause.NONE


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return tuple(parse_hostlist(text))
    except HostlistError:
        return ()


def _count(text: str) -> int:
    """`4`, and `4-8` of a pending job: the fewest."""
    match = re.match(r"\d{1,9}", text)
    return int(match[0]) if match else 0


def _time(text: str) -> float | None:
    try:
        wall_s = float(text)
    except ValueError:
        return None
    return wall_s if 0 < wall_s < _FAR_WALL_S else None
