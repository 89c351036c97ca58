"""All that the engine remembers, as plain data: what a snapshot holds."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.model.events import (
    Checkpoint,
    Device,
    ErrorRecord,
    ExitTrace,
    PastPlace,
    Rank,
    Settings,
)
from guardrun.supervisor.engine.model.looks import RankLook, Reading
from guardrun.supervisor.engine.model.lost_time import Ledger
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.repeated_frames import Loop
from guardrun.supervisor.engine.observation.step_times import StepTimes
from guardrun.supervisor.engine.state.job_nodes import Fleet
from guardrun.supervisor.engine.state.preemption_state import Notice
from guardrun.supervisor.engine.state.progress_gaps import Gaps
from guardrun.supervisor.engine.state.step_rate import StepRate
from guardrun.supervisor.health.base.findings import Finding


class RankState(msgspec.Struct, kw_only=True):
    """What is known of one rank of the current attempt."""

    rank: Rank
    state: str = "S"
    progress_s: float = 0.0
    progress: int = 0
    gap_s: float = 0.0
    """Between its last two advances, as far as reports show."""
    step: int = 0
    milestones: int = 0
    is_save_held: bool = False
    phase: str = ""
    exitcode: int | None = None
    exited_s: float = 0.0
    error: ErrorRecord | None = None
    has_ended: bool = False


class Stall(msgspec.Struct, kw_only=True):
    """A suspicion with somebody to name: told, and so far nothing more."""

    summary: str
    culprits: list[int]
    place: str
    """Of the first culprit, as Judgement has it."""
    spot: str
    cause: str
    onset_s: float
    told_s: float
    acts_s: float | None
    """When it would be acted on, if it stays as it is; None: not by itself."""
    looks: list[str] = []
    """Folders of those that it was told by."""
    is_said: bool = False
    """On the terminal: each place once a run."""
    doubts: int = 0
    """Looks in a row that have shown somebody at work since."""


class Suspicion(msgspec.Struct, kw_only=True):
    """A job that shows no progress is being looked at."""

    began_s: float
    reason: str
    next_look_s: float
    looks: list[str] = []
    """Folders of the looks taken, oldest first."""
    last: dict[int, RankLook] = {}
    """Per rank, the look before: two in a row are judged, so that short work is not averaged away."""
    unmoved_since_s: dict[int, float] = {}
    """Per rank: since when nothing about it has moved."""
    moved_s: dict[int, float] = {}
    """Per rank: when it was last seen to get somewhere; not for those that never were."""
    loops: dict[int, Loop] = {}
    """Per rank that runs in code of its own: what looks have shown of it since."""
    places: dict[int, str] = {}
    """Per rank that is not waiting for others: where it was last seen. Remembered when the stall ends by itself."""
    awake: set[int] = set()
    """Ranks that were seen to wake up since anything else about them moved."""
    stall: Stall | None = None
    """What it was found to be, once that has lasted long enough to be told."""
    is_forced: bool = False
    """A person wants it ended: what the next look finds is the verdict."""
    busy_looks: int = 0
    found_key: str = ""
    """What the last look was found to say; a verdict needs it said twice in a row."""
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
    readings: list[Reading] = []
    last_words: dict[str, str] = {}
    """As in ExitsRead."""
    is_asked: bool = False
    incident_id: str = ""
    """It has been told, but not who is to blame: what is read now may say it."""
    is_stale: bool = False
    """The exits that are being read are not all any more."""


class Nodes(msgspec.Struct, kw_only=True):
    """What is known of the nodes (engine/detectors/failure/node_health.py)."""

    findings: dict[str, Finding] = {}
    """`NODE/ID` → what is wrong there right now."""
    incidents: dict[str, str] = {}
    """`NODE/ID` → the incident that tells it."""
    devices: dict[int, Device] = {}
    """Per global rank."""
    isolated: dict[str, str] = {}
    """Node → the incident for which it was put under quarantine."""
    unsettled: dict[str, str] = {}
    """Node → the incident for which it is being isolated: not known yet to be done."""
    awaited: dict[str, float] = {}
    """Node that was lost → when it is isolated, unless it is back by then (engine/recovery/awaited_nodes.py)."""
    kept_out: dict[str, str] = {}
    """Node that was lost, and is not back → what keeps other runs from it: drained, under quarantine."""
    next_s: float = 0.0
    """Findings are not held against training again before this, however many nodes report meanwhile."""


class Attempt(msgspec.Struct, kw_only=True):
    """The current (or last) attempt."""

    number: int
    started_s: float
    resumed_from: Checkpoint | None = None
    has_resumed: bool = False
    """Somebody was seen to load, or to open, a checkpoint of the run (or is known to take it)."""
    is_guarded: bool = False
    """guardrun has begun it beside a checkpoint: it is to take that up (engine/recovery/resumption.py)."""
    is_blind: bool = False
    """On some node nobody can see what is opened."""
    unopened_since_s: float = 0.0
    """Since when it has trained on, or wanted to save, without anybody having opened a checkpoint; 0 = it has not."""
    ends_anew_s: float = 0.0
    """When that will have been for long enough; likewise."""
    began_anew: str = ""
    """How that was seen, in words."""
    is_refused: bool = False
    """It is ended for it."""
    ranks: dict[int, RankState] = {}
    alive: int = 0
    stopped: dict[int, float] = {}
    """Ranks in T or t → since when they have been seen so."""
    collecting: dict[int, float] = {}
    """Ranks in a garbage collection → since when."""
    collected_s: dict[int, float] = {}
    """Ranks that have been seen in one → when it was seen to be over."""
    tied: dict[str, None] = {}
    """Nodes whose ranks have been seen to have part in something with those of other nodes."""
    waiting: dict[int, float] = {}
    """Ranks in one and the same collective, or waiting for one batch, for seconds → since when."""
    next_quick_s: float = 0.0
    """No look for proof or a collection before this."""
    next_wait_s: float = 0.0
    """No look because ranks wait before this."""
    wait_pause_s: float = 0.0
    """Between two of these that found nothing: doubled each time."""
    fell_s: float = 0.0
    """When the first rank fell by itself; 0 = none has."""
    stop_began_s: float = 0.0
    """When it was first ordered to stop; 0 = never."""
    progress_s: float = 0.0
    """When anything last advanced, of any rank; 0 = nothing yet."""
    skipped_to_s: float = 0.0
    """Silence counts from here at the earliest: time before it was nobody's."""
    step: int = 0
    """Furthest step of any rank."""
    first_step: int | None = None
    has_progress: bool = False
    has_hooks: bool = True
    ended_s: float | None = None
    outcome: str = "running"
    incident_id: str = ""
    steprate: StepRate = msgspec.field(default_factory=StepRate)


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
    last_s: float = 0.0
    """When the last event came."""
    attempt: Attempt | None = None
    attempts: list[dict[str, Any]] = []
    """Ended attempts, as summary.json shows them."""
    next_attempt: int = 0
    incidents: dict[str, Incident] = {}
    open_incidents: list[str] = []
    """Not recovered yet."""
    marks: dict[str, dict[int, int]] = {}
    """Of open incidents that have ended an attempt: how far its ranks had come, in what counts as progress."""
    next_incident: int = 1
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    remembered: dict[str, float] = {}
    """Stalls that ended by themselves: place → longest seconds."""
    past_stalls: dict[str, float] = {}
    """The same of earlier runs, by places as engine/detectors/hang/stalls.py shortens them."""
    stalls: list[dict[str, Any]] = []
    """Those of this run that had been told, as summary.json shows them; the last ones."""
    told_places: list[str] = []
    """Places at which a stall has been said on the terminal."""
    stops_at: dict[str, int] = {}
    """How often the run has been stopped for a hang at a place."""
    restart_by: str = ""
    """Who wants this attempt ended, and the next begun, now."""
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
    signalled: str = ""
    """The node whose guardrun was told so; empty: not known."""
    is_detailed: bool = False
    """The next (or current) attempt follows on a mismatch of collectives, and has torch compare them."""
    is_detail_bad: bool = False
    """Such an attempt fell before it got anywhere, as torch does not always survive that, or would for nothing."""
    best_step: int = 0
    restarts: int = 0
    no_progress: int = 0
    same_step: int = 0
    """Of the restarts in no_progress, those that stopped at one and the same step."""
    last_stop_step: int | None = None
    stops: list[dict[str, Any]] = []
    """Of the attempts in a row that stopped at one and the same step, the last this one: when, how, at which batch."""
    avoid: list[str] = []
    """Checkpoints that the script could not load: they look whole, and are not."""
    nodes: Nodes = msgspec.field(default_factory=Nodes)
    step_times: StepTimes = msgspec.field(default_factory=StepTimes)
    detectors: Detectors = msgspec.field(default_factory=Detectors)
    detected: dict[str, str] = {}
    """Keys of detectors' verdicts → the incidents that they opened."""
    fleet: Fleet | None = None
    """None: a job of one node."""
    notice: Notice = msgspec.field(default_factory=Notice)
    past: dict[str, PastPlace] = {}
    """Places of incidents in earlier runs."""
    last_error_key: str = ""
    verdict_incident: str = ""
    resuming_incident: str = ""
    """The one that the next attempt is to mend."""
    mending_incident: str = ""
    """The one that the current attempt was begun for."""
    is_restart: bool = False
    """The next attempt is guardrun's own wish, rather than a person's or a scheduler's who has started it anew."""
    resumes: str = ""
    """What has been learned of the script: opens, ignores (engine/recovery/resumption.py); empty: nothing."""
    bases: list[str] = []
    """Checkpoints, not of this run, that attempts which resumed nothing have begun with."""
    resumes_itself: bool = False
    resume_way: str = ""
    resumed_family: str = ""
    siblings: list[str] = []
    kept: str = ""
    """Of the last choice, as CheckpointChosen has them."""
    is_guarded: bool = False
    """The next attempt is to be."""
    may_go_on: bool = False
    """As Summary has it."""
    outcome: str = "running"
    give_up_reason: str = ""
    exit_code: int = 0
    saved_step: int = 0
    """Furthest step of any checkpoint that is known."""
    saves: int = 0
    """Checkpoints that ranks were seen to save, and those that the run was resumed from."""
    requeued_at: tuple[int, int] | None = None
    """These two when the job was last to be requeued; None: it never was."""
    idle_requeues: int = 0
    """Requeues in a row that got no further."""
    requeue: str = ""
    """asked, done, refused, unanswered (nobody knows; to be asked for again); empty: it was not wanted."""
    checkpoint: Checkpoint | None = None
    """The one the next, or current, attempt resumes from."""
    notes: list[str] = []
    """What was said once."""
    story: list[str] = []
    """The last events, for InvalidTransition."""

    def incident_of(self, key: str) -> Incident | None:
        """The incident that was opened for a verdict's key; None: there was none."""
        return self.incidents.get(self.detected.get(key, ""))


def enter(state: State, phase: Phase) -> None:
    """Change the phase; nothing else does. The engine raises where the table has no such way (model/transitions.py)."""
    state.phase = phase


def attempt_of(state: State) -> Attempt:
    """The current attempt, in phases that have one."""
    assert state.attempt is not None
    return state.attempt


def silence_began_s(attempt: Attempt) -> float:
    """When the job last advanced; the attempt's start before it ever did."""
    return max(attempt.progress_s, attempt.started_s, attempt.skipped_to_s)
