"""Incidents and looks as the engine and the collectors make them, for the tests of what is rendered from them."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Culprit, Incident, Summary
from guardrun.supervisor.engine.model.events import Checkpoint, Settings
from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.report.timeline.story import Story, incident_story
from guardrun.supervisor.report.timeline.timeline import Timeline
from guardrun.supervisor.rundir.run_directory import RunFile

WALL_S = 1795000000.0
SITE = "/home/user/env/lib/python3.11/site-packages"
TRAIN = "/home/user/project/train.py"

WAITING = [
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3007),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    Frame("train_step", TRAIN, 66),
    Frame("main", TRAIN, 91),
    Frame("<module>", TRAIN, 99),
]
BLOCKED = [
    Frame("readinto", "/usr/lib/python3.11/socket.py", 706),
    Frame("send", f"{SITE}/requests/adapters.py", 486),
    Frame("get", f"{SITE}/requests/api.py", 73),
    Frame("fetch_vocabulary_update", TRAIN, 73),
    Frame("main", TRAIN, 90),
    Frame("<module>", TRAIN, 99),
]
WORKER = [
    Frame("poll", "/usr/lib/python3.11/selectors.py", 415),
    Frame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 275),
]
TRACEBACK = f"""Traceback (most recent call last):
  File "{TRAIN}", line 99, in <module>
    main()
  File "{TRAIN}", line 70, in main
    raise ValueError("<script>alert(1)</script> & more")
ValueError: <script>alert(1)</script> & more
"""


def wall(at_s: float) -> float:
    return WALL_S + at_s


def run_file(**changes: Any) -> RunFile:
    values: dict[str, Any] = {
        "run_id": "20261118-vocab-1a2b",
        "node": "node-a",
        "user": "user",
        "command": ["--nproc-per-node=8", "train.py"],
        "cwd": "/home/user/project",
        "script": ["python", "train.py"],
        "launcher_pid": 4240,
        "launcher_start": 1,
        "boot_id": "none",
        "created_wall_s": WALL_S,
        "clock_mono_s": 0.0,
        "socket_dir": "/nonexistent/guardrun-sockets",
        "token": "0",
        "settings": Settings(),
    }
    return RunFile(**{**values, **changes})


def rank_look(rank: int, at_s: float = 40.0) -> RankLook:
    """Rank 1 blocked, the others waiting for it, each with a DataLoader worker."""
    pid = 4241 + rank
    frames = BLOCKED if rank == 1 else WAITING
    threads = [
        ThreadLook(tid=pid, name="MainThread", is_main=True, cpu_s=12.5, switches=900, frames=frames),
        ThreadLook(
            tid=pid + 100, name='tqdm\'s "monitor"', frames=[Frame("run", f"{SITE}/tqdm/_monitor.py", 60)], cpu_s=0.1
        ),
    ]
    process = ProcessLook(
        pid=pid, ppid=4240, command="python train.py", state="S", threads=threads, source="py-spy", io_bytes=123
    )
    worker = ProcessLook(
        pid=pid + 1000,
        ppid=pid,
        command="pt_data_worker",
        state="D" if rank == 1 else "S",
        wchan="nfs_wait" if rank == 1 else "",
        threads=[ThreadLook(tid=pid + 1000, name="MainThread", is_main=True, frames=WORKER)],
        source="py-spy",
    )
    return RankLook(global_rank=rank, at_s=at_s, process=process, children=[worker])


def hang(**changes: Any) -> Incident:
    ranks = [
        {
            "rank": rank,
            "pid": 4241 + rank,
            "state": "S",
            "judgement": "idle" if rank == 1 else "waiting",
            "reason": "is in the same frame, uses no CPU and moves no bytes" if rank == 1 else "waits in all_reduce",
            "at": "fetch_vocabulary_update (train.py:73)" if rank == 1 else "train_step (train.py:66)",
            "waits_in": "" if rank == 1 else "all_reduce",
            "step": 60,
            "collectives": 419 if rank == 1 else 420,
            "phase": "train",
        }
        for rank in range(8)
    ]
    values: dict[str, Any] = {
        "id": "001",
        "attempt": 0,
        "kind": "hang",
        "cause": "rank_blocked",
        "confidence": 0.95,
        "summary": "Rank 1 on node-a has waited 33 s in fetch_vocabulary_update (train.py:73); "
        "7 ranks wait for it in all_reduce.",
        "culprits": [Culprit(rank=1, local_rank=1, node="node-a", pid=4242)],
        "onset_s": 10.0,
        "detected_s": 43.1004,
        "acted_s": 44.1,
        "step": 60,
        "evidence": {"silent_s": 33.1, "waiting": [0, 2, 3, 4, 5, 6, 7], "ranks": ranks},
        "advice": "Give the call a timeout.",
        "action": "restart",
        "resumed_from": Checkpoint(path="/home/user/project/out/ckpt_40.pt", step=40, format="torch"),
        "recovered_s": 49.0,
        "looks": [],
    }
    return Incident(**{**values, **changes})


def crash(**changes: Any) -> Incident:
    exits = [
        {
            "rank": rank,
            "pid": 5241 + rank,
            "exitcode": 1 if rank == 3 else -15,
            "error": "ValueError: <script>alert(1)</script> & more" if rank == 3 else None,
            "stopped_by_guardrun": rank != 3,
            "lost_a_peer": False,
        }
        for rank in range(4)
    ]
    values: dict[str, Any] = {
        "id": "002",
        "attempt": 1,
        "kind": "crash",
        "cause": "exception",
        "confidence": 0.9,
        "summary": "Rank 3 on node-a raised ValueError: <script>alert(1)</script> & more in main (train.py:70).",
        "culprits": [Culprit(rank=3, local_rank=3, node="node-a", pid=5244, gpu=3)],
        "onset_s": 70.0,
        "detected_s": 70.1,
        "step": 80,
        "evidence": {
            "exits": exits,
            "oom_kills": 0,
            "error": "ValueError",
            "traceback": TRACEBACK,
            "skipped_checkpoints": [{"path": "/out/<b>.pt", "reason": "torn: its end is missing"}],
        },
        "advice": "",
        "action": "give_up",
    }
    return Incident(**{**values, **changes})


def summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "outcome": "gave_up",
        "exit_code": 1,
        "reason": "the same error at the same step twice",
        "attempts": [{"attempt": 0, "started_s": 0.25, "ended_s": 43.5, "outcome": "hang", "incident": "001"}],
        "incidents": [{"id": "001", "kind": "hang", "cause": "rank_blocked"}],
        "restarts": 1,
        "wall_s": 71.25,
        "goodput": 0.61234567,
        "lost_s": {"detecting": 33.1, "stopping": 0.4, "starting": 6.0, "redoing": 4.0, "other": 0.0},
        "last_step": 80,
    }
    return Summary(**{**values, **changes})


def explained(ranks: int = 8) -> dict[str, Any]:
    """The evidence of `hang` with all that an explanation may hold."""
    others = [rank for rank in range(ranks) if rank != 1]
    call = {"group": "0", "seq": 420, "op": "all_reduce", "sizes": [[1024, 4096]], "dtype": "float32"}
    return {
        **hang().evidence,
        "waiting": others,
        "waits": [
            {
                "ranks": others,
                "for": [1],
                "group": "the default group",
                "seq": 420,
                "op": "all_reduce",
                "where": "train.py:66",
            }
        ],
        "collectives": {
            "groups": [{"name": "0", "desc": "default_pg", "ranks": f"0-{ranks - 1}", "source": "flight recorder"}],
            "rows": [
                {**call, "state": "issued", "ranks": "0,2-7", "where": "train.py:66", "is_odd": False},
                {**call, "seq": 419, "state": "completed", "ranks": "1", "where": "train.py:64", "is_odd": True},
            ],
            "trouble": ["rank 1 did not answer"],
        },
        "readings": [
            {"name": "load", "value": 3.25, "is_odd": False},
            {"name": "/scratch free", "value": 1503238553.6, "unit": "B", "is_odd": True, "note": "nearly full"},
        ],
        "recurrence": {"said": "This has stopped 2 earlier runs at the same place, last on 2026-11-17."},
    }


def told_timeline(ranks: int = 8, stuck: int = 1, step_s: float = 0.25) -> Timeline:
    """A run as `hang` has it: trained from 2 s on, rank `stuck` blocked at 10 s, stopped at 43 s, going on at 46 s."""
    timeline = Timeline()
    timeline.feed(
        ev.RunOpened(run_id="r", settings=Settings(), node="node-a", command=[], world_size=ranks, wall_s=WALL_S), 0.0
    )
    begin_attempt(timeline, 0, ranks, 0.2)
    for at_s in range(1, 11):
        step = max(int((at_s - 2) / step_s), 0)
        report(timeline, 0, ranks, float(at_s), step, phase="train" if at_s > 1 else "start")
    timeline.feed(ev.CheckpointSaved(attempt=0, global_rank=0, path="/out/ckpt_20.pt", step=20, duration_s=0.4), 7.5)
    timeline.feed(ev.RankExited(attempt=0, global_rank=stuck, pid=4241 + stuck, exitcode=-9, at_s=43.5), 43.5)
    timeline.feed(ev.AttemptStopped(attempt=0, exitcodes={}, stopped_by_us=list(range(ranks))), 43.6)
    begin_attempt(timeline, 1, ranks, 44.0, Checkpoint(path="/out/ckpt_20.pt", step=20))
    for at_s in range(45, 50):
        report(timeline, 1, ranks, float(at_s), 20 + int((at_s - 45) / step_s), phase="train")
    return timeline


def begin_attempt(
    timeline: Timeline, attempt: int, ranks: int, at_s: float, resumed_from: Checkpoint | None = None
) -> None:
    started = [ev.Rank(global_rank=n, local_rank=n, pid=4241 + n, node="node-a") for n in range(ranks)]
    timeline.feed(ev.AttemptStarted(attempt=attempt, ranks=started, resumed_from=resumed_from), at_s)


def report(timeline: Timeline, attempt: int, ranks: int, at_s: float, step: int, *, phase: str, **changes: Any) -> None:
    """All ranks got to a step."""
    values = {"progress_s": at_s, "progress": step + 1, "step": step, "phase": phase, **changes}
    reports = [ev.RankReport(global_rank=n, **values) for n in range(ranks)]
    timeline.feed(ev.NodeReport(node="node-a", attempt=attempt, ranks=reports), at_s)


def story_of(incident: Incident, timeline: Timeline | None = None) -> Story:
    return incident_story(
        timeline or told_timeline(),
        onset_s=incident.onset_s,
        detected_s=incident.detected_s,
        recovered_s=incident.recovered_s,
    )
