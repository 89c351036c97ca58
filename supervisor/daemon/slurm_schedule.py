"""What Slurm says of the job that a run is part of: when it ends, why it was signalled; and asking to be requeued.

Read at the start, every few minutes (an administrator may change a time limit, or drain a node), at each signal, and
when an attempt of several nodes is stopped: the next one goes round those that somebody has drained. On a worker
thread, with a limit, and never waited for. Where Slurm does not answer, the end is the one that the job's environment
tells, if any, and a signal means what it says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

import msgspec

from guardrun.supervisor.base.log import log
from guardrun.supervisor.daemon.slurm_requeue import Asker, begin_requeue, own_restarts
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.requeue import RUNNING
from guardrun.supervisor.node.run_context import EngineContext, LoopContext

READ_EVERY_S = 180.0
READ_LIMIT_S = 5.0
AGAIN_S = 1.0
"""A scheduler that did not say why is asked again as long as that is awaited."""
SAME_S = 2.0
"""Ends closer than this are the same: one is told in whole seconds."""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """What matters here of a job, as Slurm tells it."""

    end_wall_s: float = 0.0
    """0: never, or not told."""
    may_requeue: bool = False
    why: str = ""
    """Why it is being ended, as SchedulerStatusChanged has it."""
    drained: dict[str, str] | None = None
    """As SchedulerStatusChanged has it."""
    failure: str = ""
    """Why it tells nothing."""


def read_job_view(job_id: str, own_restarts: int, has_nodes: bool = False) -> JobView:
    """Ask Slurm. has_nodes: also for those that are drained. Blocks for twice READ_LIMIT_S at most."""
    from guardrun.slurm.client.commands import Failure, Slurm  # only jobs of Slurm's have a use for them
    from guardrun.slurm.client.drain import read_others_drains
    from guardrun.slurm.client.jobs import StopCause, read_job, stop_cause
    from guardrun.slurm.client.requeue import why_not

    slurm = Slurm.here(READ_LIMIT_S)
    job = read_job(job_id, slurm)
    if isinstance(job, Failure):
        return JobView(failure=job.text)
    cause = stop_cause(job, own_restarts, time.time())
    return JobView(
        end_wall_s=job.end_wall_s or 0.0,
        may_requeue=not why_not(job) and cause is not StopCause.REQUEUED,
        why=RUNNING if cause is StopCause.NONE else cause.value,
        drained=read_others_drains(job.nodes, slurm) if has_nodes else None,
    )


def end_of(environ: Mapping[str, str]) -> float:
    """The job's end in its environment (SLURM_JOB_END_TIME, seconds since the epoch); 0 where there is none."""
    try:
        return float(environ.get("SLURM_JOB_END_TIME", ""))
    except ValueError:
        return 0.0


class Schedule:
    """Runs on the loop's thread. Does nothing where there is no Slurm job."""

    def __init__(self, node: LoopContext, context: EngineContext, environ: Mapping[str, str] | None = None) -> None:
        self._node, self._context = node, context
        self._environ = os.environ if environ is None else environ
        self._job_id = self._environ.get("SLURM_JOB_ID", "")
        self._read_s = 0.0
        self._is_reading = False
        self._is_wanted = False
        """A signal came while it was being read."""
        self._told: ev.SchedulerStatusChanged | None = None
        self._failure = ""
        self._over = threading.Event()

    def poll(self) -> None:
        """Once a second."""
        if not self._job_id or self._context.engine.state.phase in (Phase.NEW, Phase.ENDED):
            return
        if self._told is None:
            self._tell(JobView(end_wall_s=end_of(self._environ)), is_signalled=False)
        if time.monotonic() >= self._read_s:
            self._begin(is_signalled=self._is_why_awaited)

    @property
    def is_asked(self) -> bool:
        """Whether there is a scheduler that can say why the job ends."""
        return bool(self._job_id)

    @property
    def _is_why_awaited(self) -> bool:
        """The engine's own word: a supervisor that takes over asks, too."""
        return self._context.engine.state.notice.is_why_awaited

    def signalled(self) -> None:
        """A signal says that the job ends: ask why."""
        if self._job_id:
            self._begin(is_signalled=True)

    def stopping(self) -> None:
        """The next attempt's nodes are about to be chosen."""
        if self._job_id and self._node.run_file.fleet is not None:
            self._begin(is_signalled=False)

    def requeue(self, action: ac.Requeue) -> None:
        """Ask Slurm to requeue the job; it answers by ending it."""

        def answered(event: ev.Requeued) -> None:
            self._node.post(lambda: self._node.feed(event))

        if not self._job_id:
            answered(ev.Requeued(is_done=False, why="this is no Slurm job"))
            return
        patience_s = max(action.until_s - self._node.clock.now(), 0.0)
        asker = Asker(self._node.terminal.say, self._over.wait, answered)
        begin_requeue(self._environ, action.exclude, patience_s, asker)

    def close(self) -> None:
        """The run is over."""
        self._over.set()

    def _begin(self, is_signalled: bool) -> None:
        if self._is_reading:
            self._is_wanted = self._is_wanted or is_signalled
            return
        self._is_reading, self._read_s = True, time.monotonic() + READ_EVERY_S
        job_id = self._job_id
        has_nodes = self._node.run_file.fleet is not None
        restarts = own_restarts(self._environ)

        def work() -> None:
            try:
                job = read_job_view(job_id, restarts, has_nodes)
            except Exception as error:
                job = JobView(failure=repr(error))
            self._node.post(lambda: self._read(job, is_signalled))

        self._node.in_background(work, lambda error: None)

    def _read(self, job: JobView, is_signalled: bool) -> None:
        self._is_reading = False
        if not job.failure:
            self._tell(job, is_signalled)
        elif job.failure != self._failure:
            log.info("scheduler_unknown", job_id=self._job_id, failure=job.failure)
        if self._is_why_awaited:
            self._read_s = time.monotonic() + AGAIN_S
        self._failure = job.failure
        if self._is_wanted:
            self._is_wanted = False
            self._begin(is_signalled=True)

    def _tell(self, job: JobView, is_signalled: bool) -> None:
        """Tell the engine what has changed."""
        end_s = job.end_wall_s - self._node.clock.wall_s(0.0) if job.end_wall_s else 0.0
        why = job.why if is_signalled else ""
        end_s = round(max(end_s, 0.0), 1)
        told = ev.SchedulerStatusChanged(end_s=end_s, may_requeue=job.may_requeue, why=why, drained=job.drained)
        if why or self._told is None or not _is_same(self._told, told):
            self._told = told
            self._node.feed(told)


def _is_same(last: ev.SchedulerStatusChanged, now: ev.SchedulerStatusChanged) -> bool:
    is_end_same = abs(last.end_s - now.end_s) < SAME_S
    return is_end_same and (last.may_requeue, last.drained) == (now.may_requeue, now.drained)
