"""What is known of a run that tells why it came out as it did; all that a comparison goes by."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.model.events import Checkpoint, SampleOrder
from guardrun.supervisor.rundir.environment import Environment

CURVES = {"loss": "loss", "grad_norm": "norm of gradients", "learning_rate": "learning rate"}
"""What is compared step by step, and its words."""


class Curve(NamedTuple):
    """One value against steps."""

    points: list[tuple[int, float]]
    """(step, value), steps ascending; values may be NaN or infinite."""
    is_single: bool = True
    """Each value is of that very step; False: the median of the steps up to it since the point before."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a run."""

    number: int
    world_size: int
    nodes: list[str]
    resumed_from: Checkpoint | None = None


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, in short."""

    cause: str
    step: int | None = None
    action: str = ""


class RunFacts(msgspec.Struct, kw_only=True):
    """One run, as its folder tells of it. What is empty or None is not known."""

    run_id: str
    run_dir: str
    node: str = ""
    user: str = ""
    cwd: str = ""
    command: list[str] = []
    """guardrun's own arguments."""
    script: list[str] = []
    """What each rank runs."""
    config: dict[str, object] = {}
    """guardrun's, without where it came from."""
    state: str = "ended"
    """running, unfinished, ended, or elsewhere (on another node, and not over)."""
    outcome: str = ""
    last_step: int | None = None
    sessions: int = 1
    attempts: list[Attempt] = []
    steps_redone: int | None = None
    incidents: list[Trouble] = []
    left_out: int = 0
    """Steps that guardrun left out."""
    skipped: int = 0
    """Steps that a GradScaler left out."""
    orders: dict[tuple[int, int, int], SampleOrder] = {}
    """By rank, loader, and pass over it: of the first attempt that told it."""
    curves: dict[str, Curve] = {}
    step_times: list[float] = []
    """Seconds a step, over stretches of the run."""
    environments: list[Environment] = []
    missing: list[str] = []
    """What of it could not be read, and why."""

    @property
    def environment(self) -> Environment | None:
        """What it began with."""
        return self.environments[0] if self.environments else None

    @property
    def first(self) -> Attempt | None:
        """Its first attempt."""
        return self.attempts[0] if self.attempts else None


def add_point(points: list[tuple[int, float]], step: int, value: float) -> None:
    """Add the next value of a curve; where training went back, what it had done beyond is forgotten."""
    while points and points[-1][0] >= step:
        points.pop()
    points.append((step, value))
