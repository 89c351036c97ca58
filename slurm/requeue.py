"""Putting a job back into Slurm's queue, without the nodes that are quarantined.

Slurm takes a job's list of excluded nodes only while the job is not running, and a requeue ends the job that asks for
it, within KillWait: so both orders go out one right after the other, by a shell that the end of the job does not stop
at once. The job's next start is Slurm's to decide; it waits at least AuthInfo's cred_expire, 120 s by default.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from guardrun.slurm.commands import Failure, FailureKind, Slurm
from guardrun.slurm.hostlist import HostlistError, join_hosts, parse_hostlist
from guardrun.slurm.jobs import SlurmJob, read_job


class RequeueState(str, Enum):
    """What became of a requeue."""

    DONE = "done"
    """Ordered: whoever asked from within the job is about to be ended."""
    IMPOSSIBLE = "impossible"
    """It cannot start again by itself: salloc, srun without sbatch, --no-requeue, over."""
    REFUSED = "refused"
    """This user may not."""
    FAILED = "failed"
    """Slurm did not answer, or is not here."""


class Requeued(NamedTuple):
    """What became of it, and one sentence for a person."""

    state: RequeueState
    text: str
    excluded: tuple[str, ...] = ()
    """All nodes that the job will not get again, its user's own among them."""

    @property
    def is_done(self) -> bool:
        return self.state is RequeueState.DONE


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
    if own_restarts is not None and known.restarts > own_restarts:
        return Requeued(
            RequeueState.DONE, f"job {known.job} is back in the queue already", tuple(_hosts(known.excluded))
        )
    if why := why_not(known):
        return Requeued(RequeueState.IMPOSSIBLE, why)
    own = _hosts(known.excluded)
    excluded = tuple(dict.fromkeys((*own, *exclude)))
    orders = [["scontrol", "requeue", known.job]]
    if len(excluded) > len(own):
        orders.append(["scontrol", "update", f"jobid={known.job}", f"excnodelist={join_hosts(excluded)}"])
    answer = slurm.run_unstoppable(*orders)
    if isinstance(answer, Failure):
        return _half_done(known, answer, slurm)
    without = f", without {', '.join(excluded)}" if excluded else ""
    return Requeued(RequeueState.DONE, f"job {known.job} is back in the queue{without}", excluded)


def _half_done(job: SlurmJob, failure: Failure, slurm: Slurm) -> Requeued:
    """One of the orders failed: which?"""
    now = read_job(job.job, slurm)
    if not isinstance(now, Failure) and now.restarts > job.restarts:
        text = f"job {job.job} is back in the queue, but may get the same nodes again: {failure.text}"
        return Requeued(RequeueState.DONE, text, tuple(_hosts(now.excluded)))
    return _failed(job.job, failure)


def _failed(job: str, failure: Failure) -> Requeued:
    refused = failure.kind is FailureKind.REFUSED
    state = RequeueState.REFUSED if refused else RequeueState.FAILED
    return Requeued(state, f"job {job} could not be requeued: {failure.text}")


def _hosts(text: str) -> list[str]:
    try:
        return parse_hostlist(text)
    except HostlistError:
        return [text] if text else []
