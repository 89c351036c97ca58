"""What a diagnosis is made of: the object that `guardctl diagnose --json` prints (docs/diagnose.md).

Beside it, what a supervisor answers to `look`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.detectors.hang.suspicion import Hang
from guardrun.supervisor.engine.model.actions import Culprit
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.state.state import State

SCHEMA = 1

HEALTHY = "healthy"
"""It gets somewhere."""
STARTING = "starting"
"""It has not begun to train yet, or is being started anew."""
SUSPICIOUS = "suspicious"
"""It stands still, but not yet for longer than guardrun allows for what it seems to be."""
HANG = "hang"
CRASHED = "crashed"
"""A rank has fallen, or the run has ended badly."""
FINISHED = "finished"
"""It ended well, or somebody ended it."""
UNKNOWN = "unknown"
"""What was seen does not tell."""

VERDICTS = (HEALTHY, STARTING, SUSPICIOUS, HANG, CRASHED, FINISHED, UNKNOWN)


class Target(msgspec.Struct, kw_only=True):
    """What was diagnosed."""

    kind: str
    """run, or processes."""
    source: str
    """Who looked: supervisor (the run's own), guardctl (itself), directory (nobody: it is what the run left behind)."""
    node: str
    """Of several the head."""
    world_size: int | None = None
    run_id: str | None = None
    run_dir: str | None = None
    attempt: int | None = None
    pids: list[int] = []
    """As given by --pid."""


class RankLine(msgspec.Struct, kw_only=True):
    """What one rank does."""

    rank: int
    local_rank: int
    node: str
    pid: int
    doing: str
    """A word of engine/observation/rank_activity.py's Doing, or `exited`."""
    reason: str
    at: str = ""
    """`function (file.py:73)`: the innermost frame of the user's own code."""
    waits_in: str = ""
    is_culprit: bool = False
    state: str = ""
    """The letter of /proc/PID/stat."""
    cpu: float | None = None
    """Cores used between the looks."""
    step: int | None = None
    phase: str = ""
    exitcode: int | None = None
    trouble: str = ""
    """Why there are no (better) stacks of it."""


class Unseen(msgspec.Struct, kw_only=True):
    """What could not be looked at, or not well."""

    what: str
    """`rank 3`, `ranks 2-7`, `process 4242`, `stacks`."""
    why: str


class Next(msgspec.Struct, kw_only=True):
    """Something to do next."""

    command: list[str]
    """As arguments: nothing in it needs a shell."""
    why: str
    changes: bool = False
    """It changes something: not to be run without being asked to."""


class Diagnosis(msgspec.Struct, kw_only=True):
    """The whole answer."""

    schema: int = SCHEMA
    target: Target
    verdict: str
    kind: str | None = None
    """As in incident.json; null where there is nothing to explain."""
    cause: str | None = None
    confidence: float = 0.0
    """That the verdict is right, 0 to 1."""
    summary: str
    """One sentence."""
    why: str = ""
    """What the verdict and its confidence rest on."""
    culprits: list[Culprit] = []
    onset: str | None = None
    """UTC; since when nothing has moved, as far as is known."""
    silent_s: float | None = None
    """For how long."""
    patience_left_s: float | None = None
    """suspicious: how much longer guardrun would wait before it calls it a hang."""
    observed_s: float = 0.0
    """Between the first and the last look."""
    step: int | None = None
    evidence: dict[str, Any] = {}
    advice: str = ""
    ranks: list[RankLine] = []
    stacks: list[dict[str, Any]] = []
    """Equal ones once, outliers first, as `stack_groups` of a hang's evidence."""
    incidents: list[dict[str, Any]] = []
    """Of a run: as `guardctl incidents --json` has them."""
    next: list[Next] = []
    unseen: list[Unseen] = []


# Look answer --------------------------------------------------------------------------------------------------------
# What a supervisor answers to `look`: a look at its ranks, and what its engine knows of them.


LOOK = "look"
"""The verb."""


class LookAnswer(msgspec.Struct, kw_only=True):
    """What a supervisor answers to `look`."""

    state: State
    ranks: list[RankLook] = []
    missing: dict[int, str] = {}
    now_s: float
    wall_s: float


def trimmed(state: State) -> State:
    """The engine's memory as a diagnosis needs it: without looks, incidents and history, however long the run."""
    hang = state.detectors.hang
    suspicion = hang.suspicion
    return State(
        phase=state.phase,
        settings=state.settings,
        run_id=state.run_id,
        node=state.node,
        world_size=state.world_size,
        opened_s=state.opened_s,
        last_s=state.last_s,
        attempt=state.attempt,
        gaps=state.gaps,
        detectors=Detectors(
            hang=Hang(
                attempt=hang.attempt,
                remembered=dict(list(hang.remembered.items())[-256:]),
                suspicion=None if suspicion is None else msgspec.structs.replace(suspicion, last={}, loops={}),
            ),
            rank_failure=state.detectors.rank_failure,
        ),
        detected={} if suspicion is None else {key: one for key, one in state.detected.items() if key == suspicion.key},
        by_hand=state.by_hand,
        is_held=state.is_held,
        signum=state.signum,
        restarts=state.restarts,
        outcome=state.outcome,
        give_up_reason=state.give_up_reason,
    )
