"""A run directory in which something of everything has happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, WriteIncident
from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, RankLook
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.report.incident import write_incident
from guardrun.supervisor.report.run_record import write_summary
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.rundir.run_directory import RunFile, write_run_file
from guardrun.supervisor.rundir.traces import ModuleTrace, TraceRow, write_trace
from tests.report.samples import hang, rank_look, run_file, summary, wall

NODE = "node-a"
DEVICE = "gpu:GPU-1"


def append(run_dir: Path, *story: tuple[float, ev.Event], actions: dict[int, list[Action]] | None = None) -> None:
    """Write events as a supervisor does; actions: of the event of that place."""
    journal = Journal(run_dir)
    try:
        for number, (now_s, event) in enumerate(story):
            journal.append(event, (actions or {}).get(number, []), now_s)
    finally:
        journal.close()


def report(rank: int, step: int, spent: tuple[Any, ...] | None = None, **more: Any) -> ev.RankReport:
    breakdown = ev.StepBreakdown(*spent) if spent is not None else None
    return ev.RankReport(global_rank=rank, step=step, phase="train", state="R", spent=breakdown, **more)


def look(rank: int, at_s: float) -> RankLook:
    """With a collective that is under way."""
    calls = [
        Call(seq=6, op="all_reduce", state="completed", at_s=at_s - 9),
        Call(seq=7, op="broadcast", dtype="float32", sizes=[[2, 3]], frame=Frame("sync", "/home/user/train.py", 5)),
    ]
    group = GroupLook(name="0", desc="default_pg", backend="nccl", ranks=[0, 1], issued=7, completed=6, calls=calls)
    seen = rank_look(rank, at_s)
    known: dict[str, Any] = {"batch": 12, "epoch": 1, "indices": "[3, 4]", "size": 2, "is_awaited": rank == 1}
    return _replaced(
        seen, groups=[group], batch=known, gpu_busy=0.5, in_collective="broadcast", collective_since_s=at_s - 3
    )


def _replaced(seen: RankLook, **changes: Any) -> RankLook:
    return RankLook(**{name: getattr(seen, name) for name in seen.__struct_fields__} | changes)


def story() -> list[tuple[float, ev.Event]]:
    ranks = [ev.Rank(global_rank=n, local_rank=n, pid=4241 + n, node=NODE) for n in range(2)]
    metrics = [
        ev.TrainingMetrics(1, 10, 2.5, 1.0, 1e-3, 2.6, 1.1),
        ev.TrainingMetrics(11, 20, 2.25, None, 5e-4, odd=[ev.OddStep(14, None, 3.0)], nonfinite=1),
    ]
    host = ev.MemoryUse(own=1000, below=200, processes=2, limit=10_000, used=4000)
    device = ev.DeviceMemory(500, peak=900, reserved=1000, inactive=100, segments=4, retries=1, limit=5000, total=8000)
    finding = Finding(
        id=f"thermal/{DEVICE}",
        cause="thermal",
        subject=DEVICE,
        since_s=5.0,
        told_s=6.0,
        summary="It is hot.",
        evidence={"c": 91},
    )
    error = ev.ErrorRecord(
        error="ValueError",
        frames=[("/home/user/train.py", "main", 9), ("/home/user/train.py", "load", 3)],
        data={"batch": 31, "indices": [1, 2], "size": 2},
    )
    named = ev.NamedBatch(14, 0, 1, 4, [8, 9])
    order = ev.SampleOrder(loader=0, turn=1, batches=16, distinct=32, order="ab12", epoch=1, step=1)
    return [
        (
            0.0,
            ev.RunOpened(run_id="all-1", settings=ev.Settings(), node=NODE, command=[], world_size=2, wall_s=wall(0.0)),
        ),
        (1.0, ev.AttemptStarted(attempt=0, ranks=ranks)),
        (
            5.0,
            ev.NodeReport(
                node=NODE,
                attempt=0,
                ranks=[
                    report(0, 10, (10, 4.0, 1.0, 0.5, 0.25), metrics=metrics[0], samples=[order]),
                    report(1, 10, (10, 4.0, 0.0, 0.0, 0.0)),
                ],
            ),
        ),
        (
            6.0,
            ev.NodeFindingsReported(
                node=NODE,
                findings=[finding],
                devices={0: ev.Device(subject=DEVICE, index=0)},
                gauges=[ev.Gauge(5.5, DEVICE, "temperature_c", 91.0), ev.Gauge(5.5, "net:eth0", "errors", 1.0)],
            ),
        ),
        (
            9.0,
            ev.NodeReport(
                node=NODE,
                attempt=0,
                ranks=[
                    report(0, 20, (20, 9.0, 2.0, 0.5, 0.25), metrics=metrics[1], memory=host, device_memory=device),
                    report(1, 20, (20, 8.0, 0.0, 0.0, 0.0), memory=host),
                ],
            ),
        ),
        (9.5, ev.CheckpointSaved(attempt=0, global_rank=0, path="/out/ckpt_20.pt", step=20, duration_s=0.5)),
        (9.6, ev.BatchesNamed(attempt=0, global_rank=0, step=14, loader="train", why="", ahead=0, batches=[named])),
        (40.0, ev.LookTaken(look=2, attempt=0, ranks=[look(0, 40.0), look(1, 40.5)], folder="looks/0-2")),
        (44.0, ev.AttemptStopped(attempt=0, exitcodes={0: -15, 1: -9}, stopped_by_us=[0, 1], took_s=1.0)),
        (
            45.0,
            ev.CheckpointChosen(
                choice=1,
                checkpoint=ev.Checkpoint(path="/out/ckpt_20.pt", step=20, format="torch"),
                skipped=[ev.Skipped(path="/out/ckpt_30.pt", reason="it is torn")],
            ),
        ),
        (
            46.0,
            ev.AttemptStarted(attempt=1, ranks=ranks, resumed_from=ev.Checkpoint(path="/out/ckpt_20.pt", step=20)),
        ),
        (50.0, ev.NodeReport(node=NODE, attempt=1, ranks=[report(0, 25, (5, 2.0, 0.0, 0.0, 0.0))])),
        (51.0, ev.UncaughtExceptionReported(attempt=1, global_rank=1, error=error)),
        (52.0, ev.RankExited(attempt=1, global_rank=1, pid=4242, exitcode=1, at_s=52.0)),
        (53.0, ev.AttemptStopped(attempt=1, exitcodes={0: -15, 1: 1}, stopped_by_us=[0])),
    ]


def write_traces(run_dir: Path) -> None:
    """Two ranks' module times of 30 steps."""
    for rank in range(2):
        rows = [
            TraceRow(step, module, stage, 0.01 * (1 + at), 1000 * step + at)
            for step in range(1, 31)
            for at, (module, stage) in enumerate([("", "forward"), ("layers.0", "forward"), ("layers.0", "backward")])
        ]
        write_trace(run_dir, ModuleTrace(number=1, rank=rank, node=NODE, attempt=0, at_s=8.0, rows=rows))


def make_run(folder: Path) -> tuple[Path, RunFile]:
    run_dir = folder / "all-1"
    run_dir.mkdir()
    run = run_file(run_id="all-1")
    write_run_file(run_dir, run)
    return run_dir, run


@pytest.fixture
def full(tmp_path: Path) -> tuple[Path, RunFile]:
    """A run that is over, with something in each table."""
    run_dir, run = make_run(tmp_path)
    incident = hang(looks=["looks/0-2"], evidence={"html": "<b>\x1b[31mred</b>"})
    append(run_dir, *story(), actions={7: [WriteIncident(incident=incident, is_new=True)]})
    write_incident(run_dir, incident, run, wall)
    write_summary(run_dir, summary(), run, wall)
    write_traces(run_dir)
    return run_dir, run
