"""Putting a job back into Slurm's queue, without the nodes that are quarantined.

Slurm takes a job's list of excluded nodes only while the job is not running, and a requeue ends the job that asks for
it, within KillWait: so both orders go out one right after the other, by a shell that the end of the job does not stop
at once. The job's next start is Slurm's to decide; it waits at least AuthInfo's cred_expire, 120 s by default.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from guardrun.slurm.client.commands import Failure, FailureKind, Slurm
from guardrun.slurm.client.hostlist import HostlistError, join_hosts, parse_hostlist
from guardrun.slurm.client.jobs import SlurmJob, StopCause, read_job, stop_cause


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
