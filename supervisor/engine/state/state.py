"""All that the engine remembers, as plain data: what a snapshot holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.model.actions import Incident, Note, SkipOrder, Spoiled
from guardrun.supervisor.engine.model.events import (
    Checkpoint,
    DataReplayed,
    ErrorRecord,
    PastPlace,
    Rank,
    Settings,
    TrainingMetrics,
)
from guardrun.supervisor.engine.model.lost_time import DETECTING, REDOING, TRAINING, Ledger
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Poisoned
from guardrun.supervisor.engine.observation.progress_gaps import Gaps
from guardrun.supervisor.engine.observation.step_times import BRIEF, StepRate, StepTimes
from guardrun.supervisor.engine.state.hand_changes import HandChange
from guardrun.supervisor.engine.state.in_time_save import InTimeSave
from guardrun.supervisor.engine.state.job_nodes import Fleet
from guardrun.supervisor.engine.state.memory_save import MemorySave, SaveTimes

SIGNAL, TIME_LIMIT = "signal", "time_limit"
RESUMED = 32
"""Bit of RankState.milestones: the script has asked guardrun what to resume from."""
SAVES_IN_TIME = 1024
"""Another: the script has given save_with() a function."""
OPENS, IGNORES = "opens", "ignores"
"""What has been learned of a script (engine/recovery/resumption.py)."""


class Notice(msgspec.Struct, kw_only=True):
    """That the job is about to end. One a run and session; empty until it comes."""

    since_s: float = 0.0
    """When this guardrun took the run up."""
    cause: str = ""
    """`signal` or `time_limit`; empty: the job is not about to end."""
    signum: int = 0
    """The last; 0 where a time limit comes near."""
    first: int = 0
    """The signal that it began with."""
    began_s: float = 0.0
    deadline_s: float = 0.0
    """The ranks are stopped then, saved or not."""
    end_s: float = 0.0
    """When the scheduler will end the job; 0 = unknown, or never."""
    why: str = ""
    """The scheduler's own word, as SchedulerStatusChanged has it."""
    is_why_awaited: bool = False
    """SIGTERM came, and the scheduler has not said yet who wants the end."""
    is_held: bool = False
    """Nothing is alive, and that word is waited for: a person's scancel is no preemption."""
    may_requeue: bool = False
    """As the scheduler has it: a batch job that was not submitted with --no-requeue."""
    is_forwarded: bool = False
    """The ranks were given the signal: they save by themselves."""
    catchers: list[int] = []
    """Ranks that have a handler of their own for it, and were not given it."""
    request: int = 0
    """Number of the request to the ranks; 0 = not made yet."""
    saves_from_s: float = 0.0
    """A checkpoint that was written since answers the request."""
    at_call: int = 0
    """The call of should_checkpoint() that answers yes; 0 = none could be fixed yet."""
    is_answered: bool = False
    """A rank has taken the yes."""
    saved: Checkpoint | None = None
    """A whole checkpoint newer than the request."""
    saved_s: float = 0.0
    is_stopping: bool = False
    """The ranks have been told to stop because of the notice."""
    is_sought: bool = False
    """Nothing is alive, and a last look for a checkpoint is being taken."""
    asked_s: float = 0.0
    """When that look, or the requeue, was asked for; 0 = neither is awaited."""
    until_s: float = 0.0
    """A requeue is asked for again until then, where the scheduler does not answer."""
    is_requeued: bool | None = None
    """None: it was not asked for, or there is no answer."""
    requeue_why: str = ""
    incident_id: str = ""


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
    metrics: TrainingMetrics | None = None
    """As reported last, without the odd steps."""
    exitcode: int | None = None
    exited_s: float = 0.0
    error: ErrorRecord | None = None
    refusal: str = ""
    """As RankExited has it."""
    has_ended: bool = False


class Nodes(msgspec.Struct, kw_only=True):
    """Which nodes are kept from what comes."""

    isolated: dict[str, str] = {}
    """Node → the incident for which it was put under quarantine."""
    unsettled: dict[str, str] = {}
    """Node → the incident for which it is being isolated: not known yet to be done."""
    awaited: dict[str, float] = {}
    """Node that was lost → when it is isolated, unless it is back by then (engine/recovery/eviction.py)."""
    kept_out: dict[str, str] = {}
    """Node that was lost, and is not back → what keeps other runs from it: drained, under quarantine."""


class GoingBack(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is to be ended, if there is a checkpoint from before it went wrong."""

    verdict: Poisoned
    choice: int
    """Of the question whether there is."""
    until_s: float
    """How long an answer is waited for."""


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
    is_cut: bool = False
    """It trained, and was ended for the next one to go on: who ends well then has not come to its script's end."""
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
    examined_to_s: float = 0.0
    """Until then ranks may be slow because a person has them examined: what steps go to says nothing."""
    fell_s: float = 0.0
    """When the first rank fell by itself; 0 = none has."""
    stop_began_s: float = 0.0
    """When it was first ordered to stop; 0 = never."""
    progress_s: float = 0.0
    """When anything last advanced, of any rank; 0 = nothing yet."""
    advances: int = 0
    """How many reports have shown that."""
    gap_s: float = 0.0
    """Between the last two of these."""
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
    memory_save: MemorySave = msgspec.field(default_factory=MemorySave)
    going_back: GoingBack | None = None
    poisoned: Poisoned | None = None
    """What it has trained since is of no use, where the user wants rollbacks; whether or not it is ended for it."""
    in_time: InTimeSave | None = None
    """The save that its ranks are given time for before they are ended; None: they are not, so far."""
    replays: dict[str, dict[int, DataReplayed]] = {}
    """Data loaders → ranks → whether samples are trained on again, or left out, since it resumed."""
    data_replay: dict[str, Any] = {}
    """What they tell together, as evidence has it; empty: nothing so far."""
    is_worthless: bool = False
    """It is ended for what it trains: nothing that it would save now is of use, and it may write over what is."""

    @property
    def may_save_in_time(self) -> bool:
        """Some rank's script has given save_with() a function."""
        return any(rank.milestones & SAVES_IN_TIME for rank in self.ranks.values())


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
    restart_by: str = ""
    """Who wants this attempt ended, and the next begun, now."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
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
    is_warm_bad: bool = False
    """An attempt whose ranks were forked may have fallen for that: from then on all are executed."""
    best_step: int = 0
    sound_step: int = 0
    """The furthest as well, without steps that were trained for nothing: who comes past it has got further."""
    restarts: int = 0
    no_progress: int = 0
    same_step: int = 0
    """Of the restarts in no_progress, those that stopped at one and the same step."""
    last_stop_step: int | None = None
    stops: list[dict[str, Any]] = []
    """Of the attempts in a row that stopped at one and the same step, the last this one: when, how, at which batch."""
    avoid: list[str] = []
    """Checkpoints that the script could not load: they look whole, and are not."""
    copy: str = ""
    """The checkpoint that was chosen last, if it is a copy of one that is torn: a script may want that one's name."""
    spoiled: list[Spoiled] = []
    """Of attempts that were ended for it."""
    rollbacks: list[int] = []
    """Steps at which that began."""
    skip_orders: list[SkipOrder] = []
    """What is to be left out since."""
    left_out: list[dict[str, Any]] = []
    """As Summary has it."""
    requests: int = 0
    """Number of the last request to the ranks to save."""
    save_times: SaveTimes = msgspec.field(default_factory=SaveTimes)
    interval_s: float = 0.0
    """How often the ranks are asked to save; 0: not known yet."""
    interval_asked_s: float = 0.0
    """When they were asked last."""
    memory_restarts: int = 0
    """Attempts that were ended before memory ran out."""
    nodes: Nodes = msgspec.field(default_factory=Nodes)
    step_times: StepTimes = msgspec.field(default_factory=StepTimes)
    brief_times: StepTimes = msgspec.field(default_factory=lambda: StepTimes(brief=BRIEF))
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
    remarks: dict[str, Note] = {}
    """By topic: what a person should know, and that nothing is done about."""
    by_hand: list[HandChange] = []
    """What people have changed in ranks, or run there, the last one last."""
    story: list[str] = []
    """The last events, for InvalidTransition."""

    @property
    def is_node_silent(self) -> bool:
        """Some node of the job is not heard of."""
        return self.fleet is not None and bool(self.fleet.silent)

    @property
    def may_act(self) -> bool:
        """[policy] act allows it, and nobody holds it."""
        return self.settings.act and not self.is_held

    @property
    def is_failing(self) -> bool:
        """A rank fell, or the attempt has its verdict."""
        return self.is_crashing or bool(self.verdict_incident)

    @property
    def is_crashing(self) -> bool:
        """A rank fell, and why is not told yet: its exits are being waited for, or read."""
        return self.detectors.rank_failure.crash is not None

    @property
    def verdict(self) -> Incident | None:
        """The incident for which the attempt ends, or has ended; None: none is told."""
        return self.incidents.get(self.verdict_incident)

    @property
    def verdict_key(self) -> str:
        """The key under which a detector told it; empty: none did."""
        return next((key for key, told in self.detected.items() if told == self.verdict_incident), "")

    @property
    def gets_no_further(self) -> bool:
        """The attempt has come no further than those before it."""
        attempt = self.attempt
        return attempt is not None and attempt.number > 0 and bool(self.attempts) and attempt.step <= self.sound_step

    @property
    def isolated_by(self) -> str:
        """The incident for which the job's only node is under quarantine; empty: it is not, or there are others."""
        return self.nodes.isolated.get(self.node, "") if self.fleet is None else ""

    def used_up(self, no_progress: int) -> str:
        """Which budget has no restart left: `max_no_progress`, `max_restarts`; empty: none.

        no_progress: attempts in a row that got no further.
        """
        if no_progress >= self.settings.max_no_progress > 0:
            return "max_no_progress"
        return "max_restarts" if self.restarts >= self.settings.max_restarts else ""

    @property
    def hosts(self) -> Mapping[str, str]:
        """Nodes by what others may call them: their names, first labels of these, addresses."""
        members = self.fleet.members.values() if self.fleet is not None else ()
        names = {name: one.node for one in members for name in (one.node, one.node.partition(".")[0])}
        return names | {address: one.node for one in members for address in one.addresses}

    @property
    def is_multi_node(self) -> bool:
        """The job has several nodes, each with a clock of its own."""
        return self.fleet is not None

    def incident_of(self, key: str) -> Incident | None:
        """The incident that was opened for a verdict's key; None: there was none."""
        return self.incidents.get(self.detected.get(key, ""))


def enter(state: State, phase: Phase) -> None:
    """Change the phase; nothing else does. The engine raises where the table has no such way (model/transitions.py)."""
    state.phase = phase


def without_stall(state: State, now_s: float) -> Ledger:
    """Where time went, to tell it now: a stall that was told is no training, for as long as it lasts."""
    ledger = msgspec.structs.replace(state.ledger, spent_s=dict(state.ledger.spent_s))
    suspicion = state.detectors.hang.suspicion
    if suspicion is not None and suspicion.stall is not None and ledger.use in (TRAINING, REDOING):
        ledger.reclassify(DETECTING, suspicion.stall.onset_s, now_s)
    return ledger


def book_end(state: State, use: str, now_s: float) -> None:
    """Training is to go no further: what a stall has taken until now is lost, whatever comes of it."""
    state.ledger = without_stall(state, now_s)
    state.ledger.switch(use, now_s)


def next_request(state: State) -> int:
    """A number for another request to the ranks to save: no answer to one is taken for one to another."""
    state.requests = max(state.requests, state.notice.request) + 1
    return state.requests


def attempt_of(state: State) -> Attempt:
    """The current attempt, in phases that have one."""
    assert state.attempt is not None
    return state.attempt
