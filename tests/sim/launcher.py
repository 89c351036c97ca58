"""The virtual launcher: starts, watches and stops attempts as it is told; what it tells is never lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.sim import activity as act
from tests.sim.training import Job, VirtualRank, make_ranks

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

PEER_LOST = "Connection closed by peer [127.0.0.1]:4242"


class Launcher:
    """Orders are idempotent by the attempt's number."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.number = -1
        self.is_starting = False
        self.stop_s: float | None = None
        self.stopped_by_us: list[int] = []
        self.signum = 0
        self.raised_gets_lost = False
        """The hooks' own words about exceptions do; the error files stay."""
        self.start_error = ""
        self.lingering: set[int] = set()
        """Ranks whose processes do not exit when their script has ended, but …"""
        self.lingers_s = math.inf
        """… so much later."""

    def obey(self, action: ac.StartAttempt | ac.StopAttempt) -> None:
        if isinstance(action, ac.StopAttempt):
            job = self.cluster.job
            if job is not None and action.attempt == job.number:
                self.stop(action.grace_s)
        elif action.attempt > self.number and not self.signum:
            self.number, self.is_starting = action.attempt, True
            self.cluster.after(self.cluster.random.uniform(0.05, 0.5), lambda: self._start(action))

    def _start(self, action: ac.StartAttempt) -> None:
        cluster = self.cluster
        self.is_starting = False
        if self.signum:
            return
        if self.start_error:
            cluster.fact(ev.AttemptNotStarted(attempt=action.attempt, error=self.start_error))
            return
        ranks = make_ranks(cluster.world_size, cluster.ranks_a_node, 10_000 * (action.attempt + 1), cluster.now_s)
        base = action.checkpoint.step if action.checkpoint else 0
        job = Job(number=action.attempt, plan=cluster.plan, ranks=ranks, now_s=cluster.now_s, base_step=base)
        job.poison_step = cluster.poison
        cluster.job, self.stop_s = job, None
        started = ev.AttemptStarted(
            attempt=action.attempt, ranks=[rank.rank for rank in ranks.values()], resumed_from=action.checkpoint
        )
        cluster.fact(started)
        if action.checkpoint is not None:
            cluster.fact(ev.CheckpointOpened(attempt=action.attempt, path=action.checkpoint.path))
        self._plan_save(job)

    def _plan_save(self, job: Job) -> None:
        plan, cluster = job.plan, self.cluster

        def save() -> None:
            if cluster.job is not job:
                return
            is_free = not job.own and not job.ranks[0].exitcode and job.step > job.base_step and self.stop_s is None
            if is_free and job.living:
                cluster.save(0, cluster.now_s, plan.save_s)
            cluster.after(plan.save_every_s, save)

        cluster.after(plan.save_every_s, save)

    # Ends ------------------------------------------------------------------------------------------------------

    def _exits(self, job: Job, rank: VirtualRank, exitcode: int) -> None:
        """A rank's process is gone; the boards' last words are read before that is told."""
        cluster = self.cluster
        number = rank.rank.global_rank
        if rank.exitcode is not None or cluster.job is not job:
            return
        if cluster.is_up:
            cluster.report(number // cluster.ranks_a_node)
        job.advance(cluster.now_s)
        rank.exitcode = exitcode
        cluster.fact(
            ev.RankExited(
                attempt=job.number, global_rank=number, pid=rank.rank.pid, exitcode=exitcode, at_s=cluster.now_s
            )
        )
        if not job.living and (self.stop_s is not None or not any(r.exitcode for r in job.ranks.values())):
            cluster.after(cluster.random.uniform(0.01, 0.2), lambda: self._stopped(job))

    def _raises(self, job: Job, rank: VirtualRank, error: ev.ErrorRecord) -> None:
        rank.error = error
        if self.cluster.is_up and not self.raised_gets_lost:
            event = ev.UncaughtExceptionReported(attempt=job.number, global_rank=rank.rank.global_rank, error=error)
            self.cluster.feed(event)

    def rank_falls(self, number: int, exitcode: int, error: ev.ErrorRecord | None, lag_s: float) -> None:
        cluster, job = self.cluster, self.cluster.job
        if job is None or job.ranks[number].exitcode is not None or self.stop_s is not None:
            return
        rank = job.ranks[number]
        job.begin(number, act.DYING, cluster.now_s)
        if error is not None:
            at_s = error.at_s or cluster.now_s
            self._raises(job, rank, msgspec.structs.replace(error, at_s=at_s))
        cluster.after(lag_s + 0.005, lambda: self._exits(job, rank, exitcode))
        for peer in job.living:
            if peer is not rank and cluster.random.random() < 0.7:
                cluster.after(cluster.random.uniform(0.01, 0.3), lambda peer=peer: self._peer_lost(job, peer))  # type: ignore[misc]

    def _peer_lost(self, job: Job, peer: VirtualRank) -> None:
        if peer.exitcode is not None or self.cluster.job is not job or peer.activity.state == "T":
            return
        at_s = self.cluster.now_s
        trace = "torch/distributed/distributed_c10d.py"
        self._raises(job, peer, ev.ErrorRecord(error="RuntimeError", message=PEER_LOST, traceback=trace, at_s=at_s))
        self.cluster.after(0.005, lambda: self._exits(job, peer, 1))

    def read_exits(self, action: ac.ReadExits) -> ev.Event:
        job = self.cluster.job
        if job is None or job.number != action.attempt:
            return ev.ExitsRead(attempt=action.attempt, traces=[])
        fallen = [(n, rank) for n, rank in job.ranks.items() if rank.exitcode not in (None, 0) or rank.error]
        traces = [ev.ExitTrace(global_rank=n, error=rank.error) for n, rank in fallen]
        return ev.ExitsRead(attempt=action.attempt, traces=traces, oom_kills=0)

    def training_ended(self) -> None:
        """Every rank's script comes to its end."""
        cluster, job = self.cluster, self.cluster.job
        if job is None or self.stop_s is not None:
            return
        for number, rank in job.ranks.items():
            if rank.exitcode is None and cluster.is_up:
                cluster.feed(ev.RankEnded(attempt=job.number, global_rank=number))
            if number in self.lingering:
                if number not in job.own:
                    job.begin(number, act.LINGERING, cluster.now_s)
                    cluster.after(self.lingers_s, lambda rank=rank: self._exits(job, rank, 0))  # type: ignore[misc]
                continue
            cluster.after(cluster.random.uniform(0.05, 1.0), lambda rank=rank: self._exits(job, rank, 0))  # type: ignore[misc]

    # Stops -----------------------------------------------------------------------------------------------------

    def stop(self, grace_s: float, exitcode: int = -15) -> None:
        """SIGTERM now, SIGKILL after grace_s."""
        cluster, job = self.cluster, self.cluster.job
        if job is None or self.stop_s is not None:
            return
        self.stop_s = cluster.now_s
        self.stopped_by_us = [rank.rank.global_rank for rank in job.living]
        if not job.living:
            cluster.after(0.05, lambda: self._stopped(job))
        for rank in job.living:
            if rank.activity.takes_sigterm and cluster.random.random() < 0.95:
                delay_s, code = cluster.random.uniform(0.01, 1.0), exitcode
            else:
                delay_s, code = grace_s + 0.01, -9
            cluster.after(delay_s, lambda rank=rank, code=code: self._exits(job, rank, code))  # type: ignore[misc]

    def _stopped(self, job: Job) -> None:
        if self.cluster.job is not job:
            return
        self.cluster.job = None
        codes = {number: rank.exitcode or 0 for number, rank in job.ranks.items()}
        self.cluster.fact(ev.AttemptStopped(attempt=job.number, exitcodes=codes, stopped_by_us=self.stopped_by_us))

    def interrupt(self, signum: int) -> None:
        """The user wants an end."""
        if self.signum:
            return
        self.signum = signum
        self.cluster.fact(ev.StopRequested(signum=signum))
        self.stop(10.0, -signum)
