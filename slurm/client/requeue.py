"""Putting a job back into Slurm's queue, without the nodes that are quarantined.

Its supervisor does so, or another node once the job's first one has died.

Slurm takes a job's list of excluded nodes only while the job is not running, and a requeue ends the job that asks for
it, within KillWait: so both orders go out one right after the other, by a shell that the end of the job does not stop
at once. The job's next start is Slurm's to decide; it waits at least AuthInfo's cred_expire, 120 s by default.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Patience, Slurm, ask_again
from guardrun.slurm.client.hostlist import HostlistError, join_hosts, parse_hostlist
from guardrun.slurm.client.jobs import SlurmJob, StopCause, read_job, stop_cause
from guardrun.slurm.client.nodes import SlurmNode, read_node
from guardrun.supervisor.base.own_files import read_own, write_own
from guardrun.supervisor.rundir.run_directory import check_run_dir


class RequeueState(str, Enum):
    """What became of a requeue."""

    DONE = "done"
    """Ordered: whoever asked from within the job is about to be ended."""
    IMPOSSIBLE = "impossible"
    """It cannot start again by itself: salloc, srun without sbatch, --no-requeue, over."""
    REFUSED = "refused"
    """This user may not."""
    SILENT = "silent"
    """Slurm did not answer: ask again."""
    FAILED = "failed"
    """Slurm knows no such job, or is not here."""


class Requeued(NamedTuple):
    """What became of it, and one sentence for a person."""

    state: RequeueState
    text: str
    excluded: tuple[str, ...] = ()
    """All nodes that the job will not get again, its user's own among them."""

    @property
    def is_done(self) -> bool:
        """Whether Slurm has been ordered to requeue it; the job then ends within KillWait."""
        return self.state is RequeueState.DONE

    @property
    def is_silent(self) -> bool:
        """Whether Slurm has not answered: the only outcome that is worth another try."""
        return self.state is RequeueState.SILENT


def why_not(job: SlurmJob) -> str:
    """Why a job cannot be put back into the queue; empty: it can."""
    if not job.is_batch:
        return f"job {job.job} was not submitted by sbatch: it cannot start again by itself"
    if not job.may_requeue:
        return f"job {job.job} was submitted with --no-requeue"
    if job.is_over:
        return f"job {job.job} is over ({job.state})"
    return ""


def requeue(
    job: str, exclude: Iterable[str] = (), slurm: Slurm | None = None, *, own_restarts: int | None = None
) -> Requeued:
    """Put a job (`5`, `5_3`) back into the queue, and keep it off some nodes beside those its user excluded.

    own_restarts: SLURM_RESTART_COUNT of whoever asks, where others may ask, too: it is requeued once. A job submitted
    with --no-kill that has lost its first node, and with it the batch script, is requeued by nobody else: Slurm keeps
    it running, with nothing in it, until its time is up.
    Blocks for two time limits at most. Call it last: Slurm ends the job at once.
    """
    slurm = slurm or Slurm.here()
    known = read_job(job, slurm)
    if isinstance(known, Failure):
        return _failed(job, known)
    own = _hosts(known.excluded)
    excluded = tuple(dict.fromkeys((*own, *exclude)))
    keep_off = ["scontrol", "update", f"jobid={known.job}", f"excnodelist={join_hosts(excluded)}"]
    is_off = len(excluded) == len(own)
    if own_restarts is not None and known.restarts > own_restarts:
        # By somebody else; or by us, and the answer did not arrive: then the second order did not go out.
        if not is_off and not isinstance(slurm.run_unstoppable(keep_off), Failure):
            own = list(excluded)
        return Requeued(RequeueState.DONE, f"job {known.job} is back in the queue already", tuple(own))
    if why := _why_not_now(known, own_restarts):
        return Requeued(RequeueState.IMPOSSIBLE, why)
    orders = [["scontrol", "requeue", known.job]]
    answer = slurm.run_unstoppable(*orders, *([] if is_off else [keep_off]))
    if isinstance(answer, Failure):
        return _half_done(known, answer, slurm)
    without = f", without {', '.join(excluded)}" if excluded else ""
    return Requeued(RequeueState.DONE, f"job {known.job} is back in the queue{without}", excluded)


def _why_not_now(job: SlurmJob, own_restarts: int | None) -> str:
    """As why_not; also, asked from within, where a person has ended the job meanwhile."""
    if own_restarts is not None and stop_cause(job, own_restarts, time.time()) is StopCause.CANCELLED:
        return f"job {job.job} was cancelled"
    return why_not(job)


def by_hand(job: str) -> str:
    """What a person types to have it started again."""
    return f"scontrol requeue {job}"


def _half_done(job: SlurmJob, failure: Failure, slurm: Slurm) -> Requeued:
    """One of the orders failed: which?"""
    now = read_job(job.job, slurm)
    if not isinstance(now, Failure) and now.restarts > job.restarts:
        text = f"job {job.job} is back in the queue, but may get the same nodes again: {failure.text}"
        return Requeued(RequeueState.DONE, text, tuple(_hosts(now.excluded)))
    return _failed(job.job, failure)


def _failed(job: str, failure: Failure) -> Requeued:
    states = {FailureKind.REFUSED: RequeueState.REFUSED, FailureKind.SILENT: RequeueState.SILENT}
    state = states.get(failure.kind, RequeueState.FAILED)
    return Requeued(state, f"job {job} could not be requeued: {failure.text}")


def _hosts(text: str) -> list[str]:
    try:
        return parse_hostlist(text)
    except HostlistError:
        return [text] if text else []


# Orphaned job -------------------------------------------------------------------------------------------------------
# A job whose first node has died: who starts it again?
#
# With --no-kill nobody. The batch script died with that node, the step's other tasks end, and Slurm keeps the job as
# RUNNING, with nothing in it, until its time is up (22.05, seen). So one of the other nodes has to ask for the requeue.
# But a node that has merely lost contact with the head must not end a job that is well: it is only requeued where
# Slurm, too, has given the head's node up. As long as its slurmd takes connections the batch script is there, and
# decides.
#
# And where the node lives, but guardrun there was killed, `srun` returns to the batch script, whose last line asks
# (`rescue_run`, in guardrun.sbatch).


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


def judge_fate(job: SlurmJob, head: SlurmNode, own_restarts: int, is_reachable: bool) -> Fate:
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
    return judge_fate(known, head, own_restarts, is_reachable(head))


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
