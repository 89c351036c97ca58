"""Facts of runs, made up: a run of 400 steps on two ranks, and whatever is to be different about it."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.events import Checkpoint, SampleOrder
from guardrun.supervisor.report.comparison.run_facts import Attempt, Curve, RunFacts, Trouble
from guardrun.supervisor.rundir.environment import Environment, FileDigest, Repository

ENVIRONMENT = Environment(
    node="node-a",
    script="/home/user/project/train.py",
    files={
        "train.py": FileDigest(digest="0011223344556677", size_bytes=4000),
        "model.py": FileDigest(digest="8899aabbccddeeff", size_bytes=900),
    },
    arguments={"conf.yaml": FileDigest(digest="0123012301230123", size_bytes=90)},
    repository=Repository(folder="/home/user/project", commit="a" * 40, branch="main", is_compared=True),
    packages={"torch": "2.13.0", "numpy": "2.3.1", "attrs": "25.1", "zipp": "3.2"},
    runtime={"python": "3.11.9", "torch": "2.13.0", "cuda": "13.0", "nccl": "2.29.1"},
    flags={"float32_matmul_precision": "highest", "deterministic_algorithms": "False"},
    seed=1234,
    variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    device="NVIDIA H100 80GB HBM3",
)


def curve(seed: int = 1, steps: int = 400, away: float = 0.0, since: int = 0) -> Curve:
    noise = random.Random(seed)
    points = [(step, 3.0 - step / 200 + noise.gauss(0, 0.05)) for step in range(1, steps + 1)]
    return Curve([(step, value + (away if step >= since else 0.0)) for step, value in points])


def run(run_id: str = "a", **changes: Any) -> RunFacts:
    orders = {
        (rank, 0, turn): SampleOrder(0, turn, 32, 256, f"{rank}{turn}beef", length=400, epoch=turn)
        for rank in range(2)
        for turn in range(2)
    }
    values: dict[str, Any] = {
        "run_id": run_id,
        "run_dir": f"/runs/{run_id}",
        "node": "node-a",
        "user": "user",
        "cwd": "/home/user/project",
        "script": ["/usr/bin/python3", "-u", "train.py", "--lr", "0.1", "--config=conf.yaml"],
        "config": {"guards": {"numeric": "watch"}, "hang": {"tell_s": 15}},
        "outcome": "finished",
        "last_step": 400,
        "attempts": [Attempt(number=0, world_size=2, nodes=["node-a"])],
        "orders": orders,
        "curves": {"loss": curve(), "grad_norm": curve(3), "learning_rate": Curve([(n, 0.1) for n in range(1, 401)])},
        "step_times": [0.2, 0.21, 0.2],
        "environments": [ENVIRONMENT],
    }
    return RunFacts(**{**values, **changes})


def recorded(**changes: Any) -> list[Environment]:
    return [msgspec.structs.replace(ENVIRONMENT, **changes)]


def other_run() -> RunFacts:
    """One in which everything is different."""
    files = {**ENVIRONMENT.files, "train.py": FileDigest(digest="f" * 16, size_bytes=4001)}
    return run(
        "b",
        script=["/opt/python3", "-u", "train.py", "--lr", "0.2", "--config=conf.yaml"],
        cwd="/elsewhere",
        config={"guards": {"numeric": "skip"}, "hang": {"tell_s": 30}},
        outcome="failed",
        last_step=300,
        left_out=2,
        attempts=[
            Attempt(number=0, world_size=4, nodes=["node-b"], resumed_from=Checkpoint(path="/out/c_9.pt", step=9)),
            Attempt(number=1, world_size=4, nodes=["node-b"]),
        ],
        orders={key: msgspec.structs.replace(one, order="f00d") for key, one in run().orders.items()},
        curves={"loss": curve(9), "learning_rate": Curve([(n, 0.2) for n in range(1, 301)])},
        step_times=[0.4, 0.41],
        incidents=[Trouble(cause="cuda_oom", step=200, action="restart")],
        environments=recorded(
            files=files,
            repository=Repository(folder="/p", commit="b" * 40, is_compared=True),
            seed=1,
            flags={"float32_matmul_precision": "high", "deterministic_algorithms": "False"},
            packages={**ENVIRONMENT.packages, "numpy": "1.26.0", "attrs": "24.0"},
            variables={"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
            device="NVIDIA A100",
        ),
    )
