"""All that the engine remembers, as plain data: what a snapshot holds."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.core.actions import Incident
from guardrun.supervisor.core.events import Checkpoint, ErrorRecord, ExitTrace, Rank, Settings
from guardrun.supervisor.core.gaps import Gaps
from guardrun.supervisor.core.ledger import Ledger
from guardrun.supervisor.core.looks import RankLook
from guardrun.supervisor.core.machine import Phase


class RankState(msgspec.Struct, kw_only=True):
    """What is known of one rank of the current attempt."""

    rank: Rank
    state: str = "S"
    stopped_since_s: float = 0.0
    """Since when it has been seen in T or t."""
    gc_since_s: float = 0.0
    progress_s: float = 0.0
    progress: int = 0
    step: int = 0
    milestones: int = 0
    phase: str = ""
    exitcode: int | None = None
    exited_s: float = 0.0
    error: ErrorRecord | None = None
    has_ended: bool = False


class Suspicion(msgspec.Struct, kw_only=True):
    """A job that shows no progress is being looked at."""

    began_s: float
    reason: str
    next_look_s: float
    looks: list[str] = []
    """Folders of the looks taken, oldest first."""
    first: dict[int, RankLook] = {}
    """Per rank, the earliest look that still shows it as it is now."""
    unmoved_since_s: dict[int, float] = {}
    """Per rank: since when nothing about it has moved."""
    judged: list[dict[str, Any]] = []
    places: dict[int, str] = {}
    """Per rank that is not waiting for others: where it was last seen. Remembered when the stall ends by itself."""
    busy_looks: int = 0
    incident_id: str = ""
    """The incident that a verdict opened, where it could not be acted on (observe only, held)."""


class Crash(msgspec.Struct, kw_only=True):
    """An attempt has lost a rank; its cause is being told."""

    began_s: float
    decide_by_s: float
    traces: list[ExitTrace] = []
    oom_kills: int = -1
    oom_pids: list[int] = []
    disk_free_bytes: dict[str, int] = {}
    is_read: bool = False
    is_read_after_stop: bool = False
    is_asked: bool = False


class Attempt(msgspec.Struct, kw_only=True):
    """The current (or last) attempt."""

    number: int
    started_s: float
    resumed_from: Checkpoint | None = None
    has_resumed: bool = False
    """A rank was seen to load the checkpoint (or is known to take it)."""
    ranks: dict[int, RankState] = {}
    alive: int = 0
    progress_s: float = 0.0
    """When anything last advanced, of any rank; 0 = nothing yet."""
    step: int = 0
    """Furthest step of any rank."""
    first_step: int | None = None
    has_progress: bool = False
    has_hooks: bool = True
    ended_s: float | None = None
    outcome: str = "running"
    incident_id: str = ""
    gc_incidents: dict[int, str] = {}


class State(msgspec.Struct, kw_only=True):
    """The engine's memory. Everything in here survives a snapshot."""

    phase: Phase = Phase.NEW
    settings: Settings = Settings()
    run_id: str = ""
    node: str = ""
    world_size: int = 0
    session: int = 0
    """Of the guardrun that goes on with the run; 0 for the one that created it."""
    opened_s: float = 0.0
    attempt: Attempt | None = None
    attempts: list[dict[str, Any]] = []
    """Ended attempts, as summary.json shows them."""
    next_attempt: int = 0
    incidents: dict[str, Incident] = {}
    open_incidents: list[str] = []
    """Not recovered yet."""
    next_incident: int = 1
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    remembered: dict[str, float] = {}
    """Stalls that ended by themselves: place → longest seconds."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    suspicion: Suspicion | None = None
    crash: Crash | None = None
    look: int = 0
    look_since_s: float | None = None
    """A look has been asked for."""
    choice: int = 0
    choice_tries: int = 0
    ordered_s: float = 0.0
    """When the last Start, Stop or Choose was said."""
    is_held: bool = False
    signum: int = 0
    best_step: int = 0
    restarts: int = 0
    no_progress: int = 0
    same_step: int = 0
    """Of the restarts in no_progress, those that stopped at one and the same step."""
    last_stop_step: int | None = None
    last_error_key: str = ""
    verdict: str = ""
    """restart or give_up, decided for the attempt that is being stopped; empty while undecided."""
    verdict_incident: str = ""
    give_up_reason: str = ""
    exit_code: int = 0
    checkpoint: Checkpoint | None = None
    """The one the next, or current, attempt resumes from."""
    notes: list[str] = []
    """What was said once."""
    story: list[str] = []
    """The last events, for InvalidTransition."""
