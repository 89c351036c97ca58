"""A run's status as `guardctl status --json` has it, with types, of a living run or of one that is over."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible wait",
    "T": "stopped",
    "t": "in a debugger",
    "Z": "dead",
    "X": "dead",
    "?": "",
}
"""Of /proc/PID/stat; a rank that waits for a device or its peers sleeps."""


class RankStatus(msgspec.Struct, kw_only=True):
    """One rank; None: not known."""

    global_rank: int
    node: str = ""
    pid: int | None = None
    state: str = "?"
    exitcode: int | None = None
    step: int | None = None
    step_time_s: float | None = None
    phase: str | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    left_out: int | None = None
    last_beat_s: float | None = None
    last_progress_s: float | None = None
    hooks: bool | None = None
    data_share: float | None = None
    gc_share: float | None = None
    age_s: float | None = None
    """How long ago this was so."""

    def words(self) -> str:
        """`running`, `stopped`, `exit 1`, `signal 9`."""
        return state_words(self.state, self.exitcode)


class NodeStatus(msgspec.Struct, kw_only=True):
    """One node of a job of several."""

    node: str
    role: str = ""
    standing: str = ""
    why: str = ""


class Culprit(msgspec.Struct, kw_only=True):
    """Who caused an incident."""

    rank: int | None = None


class IncidentStatus(msgspec.Struct, kw_only=True):
    """One incident, in short."""

    id: str
    kind: str = ""
    cause: str = ""
    summary: str = ""
    action: str | None = None
    culprits: list[Culprit] = []
    """A supervisor leaves them to incident.json."""


class RunStatus(msgspec.Struct, kw_only=True):
    """One run."""

    run_id: str
    state: str = ""
    attempt: int | None = None
    world_size: int = 0
    node: str = ""
    uptime_s: float = 0.0
    held: bool = False
    stall: dict[str, Any] | None = None
    ranks: list[RankStatus] = []
    nodes: list[NodeStatus] = []
    incidents: list[IncidentStatus] = []
    restarts: int = 0
    goodput: float | None = None
    lost_s: dict[str, float] = {}
    checkpoint: dict[str, Any] | None = None
    notes: list[str] = []
    summary: dict[str, Any] | None = None


def parse_status(data: dict[str, Any]) -> RunStatus:
    """Raises ValueError where it is not one of this version of guardrun."""
    return msgspec.convert(data, known_type(RunStatus))


def state_words(state: str, exitcode: int | None) -> str:
    """Of a rank: `running`, `stopped`, `exit 1`, `signal 9`."""
    if exitcode is not None:
        return f"signal {-exitcode}" if exitcode < 0 else f"exit {exitcode}"
    return STATES.get(state, state)
