"""What Slurm says of the job that a run is part of, when it ends and why it was signalled; asking for a requeue.

Read at the start, every few minutes (an administrator may change a time limit, or drain a node), at each signal, and
when an attempt of several nodes is stopped: the next one goes round those that somebody has drained. On a worker
thread, with a limit, and never waited for. Where Slurm does not answer, the end is the one that the job's environment
tells, if any, and a signal means what it says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.requeue import RUNNING
from guardrun.supervisor.node.run_context import EngineContext, LoopContext

# Slurm requeue ------------------------------------------------------------------------------------------------------
# Having Slurm start the job again, for as long as the job has: by a thread that nobody waits for.


class Asker(NamedTuple):
    """On whose behalf. All of it is called by another thread."""

    print_line: Callable[[str, str], object]
    """Text, level."""
    wait: Callable[[float], bool]
    """For so many seconds; True: the run is over, and nobody wants it any more."""
    answered: Callable[[ev.Requeued], object]


def begin_requeue(environ: Mapping[str, str], exclude: Sequence[str], patience_s: float, asker: Asker) -> None:
    """Ask for it, and tell what came of it: within patience_s, and what one question takes."""

    def work() -> None:
        try:
            event = _requeue(environ, exclude, patience_s, asker)
        except Exception as error:
            log.exception("requeue_failed")
            event = ev.Requeued(is_done=False, why=repr(error))
        asker.answered(event)

    threading.Thread(target=work, name="requeue", daemon=True).start()


def _requeue(environ: Mapping[str, str], exclude: Sequence[str], patience_s: float, asker: Asker) -> ev.Requeued:
    from guardrun.slurm.client.commands import Patience, Slurm, ask_again
    from guardrun.slurm.client.requeue import Requeued, RequeueState, by_hand, requeue

    job = environ["SLURM_JOB_ID"]
    is_over = False

    def ask() -> Requeued:
        if is_over:
            return Requeued(RequeueState.FAILED, "the run is over")
        return requeue(job, exclude, Slurm(environ), own_restarts=own_restarts(environ))

    def pause(seconds: float) -> bool:
        nonlocal is_over
        is_over = asker.wait(seconds)
        return is_over

    def silent(first: Requeued) -> None:
        asker.print_line(f"{first.text}; it is asked again for {patience_s:.0f} s. By hand: {by_hand(job)}", "warn")

    done = ask_again(ask, Patience(time.monotonic() + patience_s, pause), silent if patience_s >= 1 else None)
    log.info("requeued", state=done.state.value, text=done.text)
    hand = f"; by hand: {by_hand(job)}" if done.is_silent else ""
    return ev.Requeued(is_done=done.is_done, why=f"{done.text}{hand}", is_silent=done.is_silent)


def own_restarts(environ: Mapping[str, str]) -> int:
    """How often the job had been requeued when this guardrun was started."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


# Slurm schedule -----------------------------------------------------------------------------------------------------


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
        self._reported: ev.SchedulerStatusChanged | None = None
        self._failure = ""
        self._over = threading.Event()

    def poll(self) -> None:
        """Once a second."""
        if not self._job_id or self._context.engine.state.phase in (Phase.NEW, Phase.ENDED):
            return
        if self._reported is None:
            self._report_changes(JobView(end_wall_s=end_of(self._environ)), is_signalled=False)
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
        asker = Asker(self._node.terminal.print_line, self._over.wait, answered)
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
            self._report_changes(job, is_signalled)
        elif job.failure != self._failure:
            log.info("scheduler_unknown", job_id=self._job_id, failure=job.failure)
        if self._is_why_awaited:
            self._read_s = time.monotonic() + AGAIN_S
        self._failure = job.failure
        if self._is_wanted:
            self._is_wanted = False
            self._begin(is_signalled=True)

    def _report_changes(self, job: JobView, is_signalled: bool) -> None:
        """Tell the engine what has changed."""
        end_s = job.end_wall_s - self._node.clock.wall_s(0.0) if job.end_wall_s else 0.0
        why = job.why if is_signalled else ""
        end_s = round(max(end_s, 0.0), 1)
        told = ev.SchedulerStatusChanged(end_s=end_s, may_requeue=job.may_requeue, why=why, drained=job.drained)
        if why or self._reported is None or not _is_same(self._reported, told):
            self._reported = told
            self._node.feed(told)


def _is_same(last: ev.SchedulerStatusChanged, now: ev.SchedulerStatusChanged) -> bool:
    is_end_same = abs(last.end_s - now.end_s) < SAME_S
    return is_end_same and (last.may_requeue, last.drained) == (now.may_requeue, now.drained)
