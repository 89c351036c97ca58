"""A run whose scheduler is about to end its job, until the run's own end."""

from __future__ import annotations

import signal

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import Told

USR1, TERM, INT = int(signal.SIGUSR1), int(signal.SIGTERM), int(signal.SIGINT)
SAVED = ev.Checkpoint(path="/out/c", step=12)


def finish(actions: list[ac.Action]) -> ac.Summary:
    """What is said of the run as it ends."""
    [done] = [action for action in actions if isinstance(action, ac.FinishRun)]
    assert done.exit_code == done.summary.exit_code
    return done.summary


def noticed(told: Told, signum: int = USR1, at_s: float = 20.0, **more: object) -> list[ac.Action]:
    """A signal says that the job is about to end."""
    return told.tell(ev.PreemptionNoticed(signum=signum, **more), at_s)  # type: ignore[arg-type]


def secured(told: Told, at_s: float, checkpoint: ev.Checkpoint | None = SAVED) -> list[ac.Action]:
    """The checkpoint that was asked for is whole; None: there is none."""
    return told.tell(ev.CheckpointCompleted(request=told.state.notice.request, checkpoint=checkpoint), at_s)


def requeueable(told: Told, **settings: object) -> list[ac.Action]:
    """A job that may be requeued is warned, saves and is stopped: what follows."""
    told.running(**{"is_named": True, **settings})  # type: ignore[arg-type]
    told.tell(ev.SchedulerStatusChanged(end_s=4000.0, may_requeue=True), 5.0)
    noticed(told, is_forwarded=settings.get("requeue") == "auto")
    secured(told, 23.0)
    return told.stopped(24.0)


def left(told: Told) -> list[ac.Action]:
    """The node is put under quarantine, and falls: on one node alone there is no next attempt."""
    told.running(is_named=True, responses={"gpu_ecc": "isolate"})
    told.tell(ev.SchedulerStatusChanged(end_s=4000.0, may_requeue=True), 5.0)
    bad = Finding(
        id="gpu_ecc/gpu:GPU-1",
        cause="gpu_ecc",
        subject="gpu:GPU-1",
        since_s=10.0,
        told_s=10.0,
        summary="GPU 1 has gpu_ecc.",
        response=Response.ISOLATE,
    )
    told.tell(
        ev.NodeFindingsReported(node="node-a", findings=[bad], devices={1: ev.Device(subject="gpu:GPU-1", index=1)}),
        20.0,
    )
    return told.crashed()
