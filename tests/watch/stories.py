"""A run of any size whose rank 3 is slow and whose rank 1 hangs, as its journal and its supervisor tell of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.query.journal_reader import Entry, parse_entry
from guardrun.supervisor.report.elements.quantities import iso_time
from guardrun.supervisor.watch.run_series import RunSeries
from guardrun.supervisor.watch.run_status import parse_status
from guardrun.supervisor.watch.run_view import RunView, make_view

BEGAN_S = 1_795_600_000.0
GB = 1 << 30
STALL = (
    "Rank 1 on node-0 is blocked in fetch_vocabulary_update (train.py:86) for 31 s; the other ranks wait for it in "
    "all_reduce."
)


def line_of(number: int, at_s: float, event: ev.Event, *said: dict[str, str]) -> bytes:
    """A line of the journal."""
    line = {"v": 2, "n": number, "t": at_s, "wall": iso_time(BEGAN_S + at_s), "event": event}
    actions = [{"type": "say", **one} for one in said]
    return msgspec.json.encode({**line, **({"actions": actions} if actions else {})})


def entry_of(number: int, at_s: float, event: ev.Event, *said: dict[str, str]) -> Entry:
    """The same, as it is read."""
    found = parse_entry(line_of(number, at_s, event, *said))
    assert found is not None
    return found


def node_of(rank: int) -> str:
    return f"node-{rank // 8}"


def report(rank: int, step: int) -> ev.RankReport:
    """A step takes 0.4 s, now and then an eighth more; rank 3 works nearly all of it."""
    took_s = 0.4 * step + 2.0 * math.sin(step / 40)
    work_s = took_s * (0.95 if rank == 3 else 0.6)
    loss = 1.0 + 4.0 * math.exp(-step / 400)
    return ev.RankReport(
        global_rank=rank,
        step=step,
        phase="train",
        state="R",
        spent=ev.StepBreakdown(step, took_s, (took_s - work_s) * 0.8, (took_s - work_s) * 0.2, 0.0),
        metrics=ev.TrainingMetrics(max(step - 9, 1), step, loss, 0.5 + loss / 10, 3e-4),
        memory=ev.MemoryUse(12 * GB + rank * 1000, GB, limit=256 * GB, used=100 * GB) if step % 60 == 0 else None,
        device_memory=ev.DeviceMemory(61 * GB + rank, 66 * GB, 70 * GB, limit=79 * GB) if step % 60 == 0 else None,
    )


def story(ranks: int, steps: int = 600) -> Iterator[Entry]:
    """Every ten steps all report."""
    for line in lines(ranks, steps):
        found = parse_entry(line)
        assert found is not None
        yield found


def lines(ranks: int, steps: int = 600) -> Iterator[bytes]:
    """The same, as they lie in the journal."""
    number = 0
    who = [ev.Rank(global_rank=rank, local_rank=rank % 8, pid=4000 + rank, node=node_of(rank)) for rank in range(ranks)]
    yield line_of(number, 1.0, ev.AttemptStarted(attempt=0, ranks=who))
    for step in range(10, steps + 1, 10):
        number += 1
        at_s = 1.0 + 0.4 * step
        reports = [report(rank, step) for rank in range(ranks)]
        yield line_of(number, at_s, ev.NodeReport(node="node-0", attempt=0, ranks=reports))
        if step % 200 == 0:
            number += 1
            path = f"/data/out/ckpt_{step}.pt"
            saved = ev.CheckpointSaved(attempt=0, global_rank=0, path=path, step=step, duration_s=1.0)
            yield line_of(number, at_s + 0.1, saved)
    devices: dict[int, ev.Device | None] = {2: ev.Device(subject="gpu:GPU-2", index=2)}
    gauges = [ev.Gauge(at_s, "gpu:GPU-2", "temperature_c", 71.0), ev.Gauge(at_s, "gpu:GPU-2", "sm_clock_hz", 1.98e9)]
    told = ev.NodeFindingsReported(node="node-0", findings=[], devices=devices, gauges=gauges)
    yield line_of(number + 1, at_s + 1, told)
    tick = ev.Ticked()
    yield line_of(number + 2, at_s + 31, tick, {"text": STALL, "level": "warn"})


def series_of(entries: Iterable[Entry]) -> RunSeries:
    series = RunSeries()
    series.feed(entries)
    return series


def status(ranks: int, **changes: Any) -> dict[str, Any]:
    """As the supervisor answers."""
    stall = {
        "summary": STALL,
        "outlook": "guardrun acts in 4 min 29 s; guardctl restart does at once.",
        "who": [{"rank": 1, "node": "node-0", "pid": 4001}],
    }
    incident = {
        "id": "001",
        "kind": "slowdown",
        "cause": "straggler",
        "summary": "Rank 3 on node-0 works 1.6 times as long as the others.",
        "action": "none",
    }
    return {
        "run_id": "20261126-pretrain-1a2b",
        "state": "stalled",
        "attempt": 0,
        "world_size": ranks,
        "node": "node-0",
        "uptime_s": 272.0,
        "held": False,
        "stall": stall,
        "restarts": 0,
        "goodput": 0.87,
        "lost_s": {"detecting": 31.0, "starting": 4.2, "redoing": 0.0},
        "ranks": [
            {
                "global_rank": rank,
                "node": node_of(rank),
                "pid": 4000 + rank,
                "state": "S",
                "exitcode": None,
                "step": 600,
                "step_time_s": 0.4,
                "phase": "train",
                "loss": 1.89,
                "grad_norm": 0.69,
                "learning_rate": 3e-4,
                "last_beat_s": 0.4,
                "last_progress_s": 31.4 if rank == 1 else 12.0,
                "hooks": True,
                "data_share": 0.08,
                "gc_share": 0.0,
                "age_s": 0.0,
            }
            for rank in range(ranks)
        ],
        "nodes": [],
        "incidents": [incident],
        "checkpoint": {"path": "/data/out/ckpt_600.pt", "step": 600},
        "notes": [],
        **changes,
    }


def view_of(ranks: int, steps: int = 600, **changes: Any) -> RunView:
    """What is shown of it."""
    told = parse_status(status(ranks, **changes))
    return make_view(told, series_of(story(ranks, steps)), source="supervisor", why="")
