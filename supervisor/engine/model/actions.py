"""Actions: imperatives that the engine returns and the edge carries out.

Every action that ends comes back as an event, a failed or late one too:
StartAttempt → AttemptStarted | AttemptNotStarted, StopAttempt → AttemptStopped, TakeLook → LookTaken,
ReadExits → ExitsRead, ChooseCheckpoint → CheckpointChosen, Isolate → IsolationSettled | NotIsolated
(nothing, once it is withdrawn),
CheckNodes → NodesChecked, AskCheckpoint → CheckpointAsked and CheckpointCompleted, SeekCheckpoint →
CheckpointCompleted, SaveInTime → SavedInTime, Requeue → Requeued. The others end in themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.events import Checkpoint


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class OwnBatches(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank is to leave out: batches that follow on each other."""

    batches: list[list[int]]
    """What its sampler hands out for each."""
    before: list[int] | None = None
    """The batch before them; None unknown, or there is none."""
    is_first: bool = False
    """They are the first of a pass over the sampler."""
    loader: str = ""
    epoch: int = -1
    """As events.BatchesNamed has them."""


class SkipOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are to leave out when they meet it again, all of them or none."""

    id: str
    incident: str
    step: int
    ranks: dict[int, OwnBatches] = {}
    """All ranks of the job, each with as many batches as the others; empty: they are not known."""


class StartAttempt(_Action, frozen=True, kw_only=True, tag="start_attempt"):
    """Start the ranks; AttemptStarted or AttemptNotStarted is the answer."""

    attempt: int
    checkpoint: Checkpoint | None = None
    """Resume from this."""
    is_detailed: bool = False
    """torch itself compares collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL): after a mismatch, in that attempt alone."""
    siblings: list[str] = []
    """Checkpoints of this run: it is told when somebody opens one."""
    is_guarded: bool = False
    """Until then, ranks that would write over one are kept waiting for a moment."""
    nodes: list[str] = []
    """In the order of group ranks; empty: this node alone."""
    skips: list[SkipOrder] = []
    """Of steps after the checkpoint's."""
    is_cold: bool = False
    """Every rank is executed: forked ones have failed in this run."""


class CheckNodes(_Action, frozen=True, kw_only=True, tag="check_nodes"):
    """Try nodes together, while nothing of an attempt is alive."""

    check: int
    nodes: list[str]
    level: str
    """quick, full"""


class StopAttempt(_Action, frozen=True, kw_only=True, tag="stop_attempt"):
    """SIGTERM to every rank's process group, SIGKILL after grace_s, then everything that is left of the attempt."""

    attempt: int
    grace_s: float
    is_last: bool = False
    """No other attempt follows: torchrun's own agent, where it runs them, is ended with it."""


class TakeLook(_Action, frozen=True, kw_only=True, tag="take_look"):
    """Stacks and counters of every rank's whole process tree, within the collectors' time limits."""

    look: int
    attempt: int
    reason: str


class ReadExits(_Action, frozen=True, kw_only=True, tag="read_exits"):
    """Error files, exceptions, kernel and cgroup counters."""

    attempt: int


class Spoiled(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which training had gone wrong. What was written then is not to be resumed from."""

    attempt: int = -1
    """In which."""
    from_step: int = 0
    """What that attempt was seen to save at this step or later is of it, whenever it was written; what it was seen to
    save at an earlier one is not. Where that was not seen, times tell."""
    since_s: float
    """When it was first heard of, in the engine's seconds: a little later than it was so."""
    until_s: float
    """When nothing of the attempt was alive any more, or now."""
    why: str = ""
    """It is certain, for this reason: it is not resumed from where nothing else is there, either. Empty: it is not."""


class ChooseCheckpoint(_Action, frozen=True, kw_only=True, tag="choose_checkpoint"):
    """The newest whole, eligible checkpoint, for the next attempt. Nothing of one is alive, unless is_look."""

    choice: int
    is_look: bool = False
    """Ranks train still, and are ended only if there is one. What can't be judged is none."""
    avoid: list[str] = []
    """Not these, as long as they are as they were: the script could not load them."""
    spoiled: list[Spoiled] = []
    """None that was written then."""


class AskCheckpoint(_Action, frozen=True, kw_only=True, tag="ask_checkpoint"):
    """Have should_checkpoint() answer yes at one and the same call of all ranks, and look out for what they save."""

    request: int
    since_s: float
    """When it was first asked for: what is written later is an answer."""
    is_quiet: bool = False
    """Only look out: the ranks save for another reason."""
    attempt: int = -1
    """The only one in which it holds; -1: whichever runs, until SeekCheckpoint."""
    until_s: float = 0.0
    """Nor longer than that; 0: likewise."""
    spoiled: list[Spoiled] = []
    """What is no answer; as ChooseCheckpoint has it."""


class AskSave(_Action, frozen=True, kw_only=True, tag="ask_save"):
    """Have should_checkpoint() answer yes at one and the same call of all ranks, unless that is asked for already."""

    attempt: int


class SaveInTime(_Action, frozen=True, kw_only=True, tag="save_in_time"):
    """Have ranks call the function that their script has given to save_with(), before the attempt is stopped.

    One, or as many as are needed to save all parts of what is sharded.
    """

    request: int
    attempt: int
    until_s: float
    """In the engine's seconds: the ranks are stopped then."""
    global_ranks: list[int]
    """Those that may be asked, in that order."""
    alive: list[int]
    """All that must have finished the same step."""
    is_running: bool = False
    """Training goes on meanwhile: one saves after whichever step it has finished, the others may be further."""


class SeekCheckpoint(_Action, frozen=True, kw_only=True, tag="seek_checkpoint"):
    """Say once more, now that nothing is alive, whether there is a whole checkpoint newer than the request."""

    request: int
    spoiled: list[Spoiled] = []
    """As ChooseCheckpoint has it."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """As incident.json has it."""

    rank: int | None
    """None, with local_rank and pid: it is the node itself, before any rank of it trains."""
    local_rank: int | None
    node: str
    pid: int | None
    gpu: int | None = None


def ranks_of(culprits: Iterable[Culprit]) -> list[int]:
    """Those of the culprits that are ranks."""
    return [culprit.rank for culprit in culprits if culprit.rank is not None]


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, in the engine's seconds; the edge renders incident.json and report.html from it."""

    id: str
    """`001`, …"""
    attempt: int
    kind: str
    cause: str
    confidence: float
    summary: str
    culprits: list[Culprit]
    onset_s: float
    detected_s: float
    step: int | None
    evidence: dict[str, Any]
    advice: str
    action: str
    """none, restart, isolate_node, give_up"""
    resumed_from: Checkpoint | None = None
    acted_s: float | None = None
    """Of a hang: when something was done about it; detected_s is when it was told."""
    recovered_s: float | None = None
    looks: list[str] = []
    """Folders with raw stacks, relative to the run directory."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a person should know of the run, and that nothing is done about."""

    topic: str
    text: str
    advice: str
    evidence: dict[str, Any]
    attempt: int
    step: int | None
    """The attempt's furthest by then; None: no steps are seen."""
    at_s: float


class WriteIncident(_Action, frozen=True, kw_only=True, tag="write_incident"):
    """Write or rewrite an incident's files; is_new also runs the notify command."""

    incident: Incident
    is_new: bool


class Isolate(_Action, frozen=True, kw_only=True, tag="isolate"):
    """Put a node under quarantine: no new run there, until a person or a pre-flight releases it."""

    node: str
    incident: str
    cause: str
    summary: str
    evidence_s: float
    """When the newest of the evidence was seen: a person's release beats what is older."""
    finding: str = ""
    """Its id: of which part."""


class WithdrawIsolation(_Action, frozen=True, kw_only=True, tag="withdraw_isolation"):
    """The node is back: what is still to be done of an isolation is not. What has been done stands."""

    node: str
    incident: str


class Say(_Action, frozen=True, kw_only=True, tag="say"):
    """A line for the terminal. level: info, good, warn, bad."""

    text: str
    level: str = "info"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json, without what only the edge knows (wall times, paths)."""

    outcome: str
    """finished, failed, gave_up, interrupted, preempted"""
    exit_code: int
    reason: str
    attempts: list[dict[str, Any]]
    incidents: list[dict[str, Any]]
    restarts: int
    wall_s: float
    goodput: float
    """Share of wall_s in which training got further than ever before."""
    lost_s: dict[str, float]
    """detecting, stopping, starting, redoing, other"""
    last_step: int | None
    stalls: list[dict[str, Any]] = []
    """That were told and became no incident: place, seconds, who."""
    notes: list[dict[str, Any]] = []
    """Each as Note has it."""
    resumes: str = ""
    """What was learned of the script: opens, ignores (engine/recovery/resumption.py); empty: nothing."""
    may_go_on: bool = False
    """It has ended, but only for want of a word on how the script resumes: the same run id goes on with it."""
    requeue: str = ""
    """Whether the scheduler was to start the job again: empty (no), or as State.requeue has it."""
    left_out: list[dict[str, Any]] = []
    """Batches that were left out after rollbacks: order, incident, attempt, step, and the indices by rank."""
    spike_score: dict[str, float | int] = {}
    """As engine/observation/spike_score.py has it; empty: too few values came."""


class Requeue(_Action, frozen=True, kw_only=True, tag="requeue"):
    """Write summary.json, then have the scheduler put the job back into its queue: which ends this one at once."""

    exclude: list[str] = []
    """Nodes that it is not to get again."""
    until_s: float = 0.0
    """A scheduler that does not answer is asked again until then."""
    summary: Summary


class FinishRun(_Action, frozen=True, kw_only=True, tag="finish_run"):
    """The run is over: write summary.json, let the launcher exit with exit_code."""

    exit_code: int
    summary: Summary


Action = (
    StartAttempt
    | CheckNodes
    | StopAttempt
    | TakeLook
    | ReadExits
    | ChooseCheckpoint
    | AskCheckpoint
    | AskSave
    | SaveInTime
    | SeekCheckpoint
    | Requeue
    | WriteIncident
    | Isolate
    | WithdrawIsolation
    | Say
    | FinishRun
)
