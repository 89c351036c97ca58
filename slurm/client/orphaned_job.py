"""A job whose first node has died: who starts it again?

With --no-kill nobody. The batch script died with that node, the step's other tasks end, and Slurm keeps the job as
RUNNING, with nothing in it, until its time is up (22.05, seen). So one of the other nodes has to ask for the requeue.
But a node that has merely lost contact with the head must not end a job that is well: it is only requeued where Slurm,
too, has given the head's node up. As long as its slurmd takes connections the batch script is there, and decides.

And where the node lives, but guardrun there was killed, `srun` returns to the batch script, whose last line asks
(`rescue_run`, in guardrun.sbatch).
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm
from guardrun.slurm.client.jobs import SlurmJob, read_job
from guardrun.slurm.client.nodes import SlurmNode, read_node
from guardrun.slurm.client.requeue import Requeued, RequeueState, by_hand, requeue
from guardrun.slurm.client.retry import Patience, ask_again
from guardrun.supervisor.base.own_files import read_own, write_own
from guardrun.supervisor.rundir.run_directory import check_run_dir

PATIENCE_S = 900.0
"""Slurm sets a node down after SlurmdTimeout, 300 s by default, counted anew when it has missed an answer."""
EVERY_S = 15.0
CONNECT_S = 3.0
RESCUES = "rescues.json"
AGAIN_S = 600.0
"""In a batch script; the job's time limit may be nearer."""
STILL_WANTED = ("asked", "unanswered")
"""Of a summary's `requeue`: nobody has answered."""
MAX_RESCUES, WITHIN_S = 3, 3600.0
"""A run that kills its head each time is not started for ever."""


class Fate(str, Enum):
    """What becomes of a job whose head is not heard."""

    LEAVE = "leave"
    """It is ending, was requeued, or its batch script is alive."""
    WAIT = "wait"
    """Slurm has not given the head's node up yet."""
    SILENT = "silent"
    """Slurm does not answer."""
    REQUEUE = "requeue"
    """It has: nobody else will."""


def judge(job: SlurmJob, head: SlurmNode, own_restarts: int, is_reachable: bool) -> Fate:
    """What becomes of it. is_reachable: the slurmd of the head's node takes connections."""
    if job.state != "RUNNING" or job.restarts > own_restarts:
        return Fate.LEAVE
    if head.is_down or (job.nodes and head.name not in job.nodes):
        return Fate.REQUEUE
    return Fate.LEAVE if is_reachable else Fate.WAIT


def rescue_job(
    job: str,
    own_restarts: int,
    exclude: Iterable[str] = (),
    *,
    slurm: Slurm | None = None,
    patience_s: float = PATIENCE_S,
    every_s: float = EVERY_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Requeued | None:
    """For a node that has lost the head for good, and has nothing alive: requeue the job if nobody else can.

    job: as Slurm's commands call it; own_restarts: SLURM_RESTART_COUNT. None: there was no need. Blocks until that is
    known, patience_s at most: for a thread that may wait.
    """
    slurm = slurm or Slurm.here()
    deadline_s = time.monotonic() + patience_s
    while True:
        fate = _look(job, own_restarts, slurm)
        done = requeue(job, exclude, slurm, own_restarts=own_restarts) if fate is Fate.REQUEUE else None
        if fate is Fate.LEAVE or (done is not None and not done.is_silent):
            return done
        if time.monotonic() >= deadline_s:
            why = "Slurm did not answer" if fate is Fate.SILENT or done else "Slurm has not given up the head's node"
            text = f"job {job} was not requeued: {why} for {patience_s:.0f} s; by hand: {by_hand(job)}"
            return Requeued(RequeueState.SILENT, text)
        sleep(every_s)


def _look(job: str, own_restarts: int, slurm: Slurm) -> Fate:
    known = read_job(job, slurm)
    if isinstance(known, Failure):
        # No Slurm here, or no such job any more: nothing to wait for.
        return Fate.SILENT if known.kind is FailureKind.SILENT else Fate.LEAVE
    head = read_node(known.batch_host, slurm) if known.batch_host else None
    if head is None or isinstance(head, Failure):
        return Fate.SILENT if head is not None and head.kind is FailureKind.SILENT else Fate.LEAVE
    return judge(known, head, own_restarts, is_reachable(head))


def is_reachable(node: SlurmNode) -> bool:
    """Say whether a node's slurmd takes connections. Blocks for CONNECT_S at most, and what names take to resolve."""
    if not (node.address and node.port):
        return False
    try:
        socket.create_connection((node.address, node.port), CONNECT_S).close()
    except OSError:
        return False
    return True


# In the batch script ---------------------------------------------------------------------------------------------


class Rescue(NamedTuple):
    """Whether a run was rescued, and one sentence."""

    is_done: bool
    text: str


def rescue_run(
    run_dir: Path,
    job: str,
    own_restarts: int,
    slurm: Slurm,
    now_wall_s: float,
    *,
    exclude: Iterable[str] = (),
    wait: Callable[[float], object] = time.sleep,
    silent: Callable[[str], object] = lambda text: None,
) -> Rescue:
    """Requeue this job where its run was cut short: it has begun, nobody lives that runs it, and nothing ended it.

    Or where it has ended, and the requeue that it wanted was not made: Slurm was away. A Slurm that is silent is asked
    again, for AGAIN_S; `silent` is told once. exclude: nodes to keep the job off.
    """
    if not (run_dir / "run.json").is_file():
        return Rescue(False, f"{run_dir} holds no run: nothing to go on with (GUARDRUN_DIR says where runs are kept)")
    try:
        check_run_dir(run_dir)
    except OSError as error:
        return Rescue(False, f"{error}: a job does not go on by that")
    ended, wanted = _read_end(run_dir / "summary.json")
    if ended and wanted not in STILL_WANTED:
        return Rescue(False, "the run came to an end of its own; see guardctl status")
    times = [at for at in _read_times(run_dir / RESCUES) if now_wall_s - WITHIN_S < at <= now_wall_s]
    if len(times) >= MAX_RESCUES:
        return Rescue(False, f"the run was cut short {len(times)} times within an hour: not started again")
    # Before the order: it ends this process.
    write_own(run_dir / RESCUES, json.dumps([*times, now_wall_s]).encode())
    done = ask_again(
        lambda: requeue(job, exclude, slurm, own_restarts=own_restarts),
        Patience(time.monotonic() + AGAIN_S, wait),
        lambda first: silent(f"{first.text}; it is asked again for {AGAIN_S / 60:.0f} minutes"),
    )
    said = "the run's requeue was still to be made" if ended else "the run was cut short without a word"
    hand = f"; by hand: {by_hand(job)}" if done.is_silent else ""
    return Rescue(done.is_done, f"{said}: {done.text}{hand}")


def _read_end(path: Path) -> tuple[bool, str]:
    """Whether the run has come to an end, and what became of the requeue that it wanted, as summary.json has it."""
    try:
        found = json.loads(read_own(path))
    except FileNotFoundError:
        return False, ""
    except (OSError, ValueError):
        return True, ""
    told = found.get("requeue", "") if isinstance(found, dict) else ""
    return True, told if isinstance(told, str) else ""


def _read_times(path: Path) -> list[float]:
    try:
        found = json.loads(read_own(path))
    except (OSError, ValueError):
        return []
    return [float(at) for at in found if isinstance(at, int | float)] if isinstance(found, list) else []
