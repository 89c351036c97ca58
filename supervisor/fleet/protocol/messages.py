"""What followers and the coordinator say to each other, inside the envelopes of `envelopes.py`.

Up go the engine's own events, as if the node were alone, but in the coordinator's seconds and with global ranks; and
what only the head's edge needs. Down go orders, all of them idempotent: whoever gets one again answers it again.

One module, as they are two unions, one a direction: whoever adds a message sees what there is.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from guardrun.supervisor.collect.ranks.boards import Part
from guardrun.supervisor.collect.ranks.ledgers import Place as DataPlace
from guardrun.supervisor.engine.membership.reachability import ProbeResult
from guardrun.supervisor.engine.membership.version_skew import NodeEnvironment
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Isolate, ReadExits, TakeLook
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.wire.control_messages import Finish, RankRow, Shares, Start, Stop

MAX_RAW_BYTES = 1024 * 1024
"""Of one node's raw stacks of one look, compressed; what is beyond is left on the node, and said."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# Up ------------------------------------------------------------------------------------------------------------


class Serving(_Message, frozen=True, kw_only=True, tag="serving"):
    """As in supervisor/wire/control_messages.py, on its way to the other nodes."""

    attempt: int
    address: str
    port: int


class Raw(_Message, frozen=True, kw_only=True, tag="raw"):
    """A look's files: before its LookTaken."""

    folder: str
    """Relative to the run directory."""
    files: dict[str, bytes]
    """Names relative to the folder → contents, compressed by zlib."""
    left_out: int = 0


class Loaded(_Message, frozen=True, kw_only=True, tag="loaded"):
    """A rank has loaded something before its first step: where it is a checkpoint, its steps count from there."""

    attempt: int
    global_rank: int
    path: str


class Checks(_Message, frozen=True, kw_only=True, tag="checks"):
    """Answer to AskChecks: calls of should_checkpoint() so far, the fewest and the most of this node's ranks."""

    number: int
    """AskChecks'."""
    fewest: int
    most: int
    ahead: int
    """How many more there may be in the time that was asked for."""
    armed: int = 0
    """A call that is set already, and that some rank has still to make."""


class CheckpointSet(_Message, frozen=True, kw_only=True, tag="checkpoint_set"):
    """Answer to SetCheckpoint: this node's ranks will say yes at that call; or it was late, and they will not."""

    number: int
    is_set: bool


class StepsReported(_Message, frozen=True, kw_only=True, tag="steps_reported"):
    """Answer to ReportSteps: the fewest and the most that a rank has finished."""

    request: int
    low: int = 0
    high: int = 0
    why: str = ""
    """Nothing can be said, or a rank saves by itself."""
    is_saving: bool = False
    """It is the latter."""
    parts: dict[int, Part] = {}
    """Which part each of the node's ranks holds, dead or alive, where what they train is sharded."""
    pages: dict[int, bytes] = {}
    """Random pages (hooks/wire/random_page.py) of the node's ranks, dead or alive, where a trainer keeps them."""


class SavedHere(_Message, frozen=True, kw_only=True, tag="saved_here"):
    """Answer to SaveHere."""

    request: int
    global_rank: int
    told: dict[str, Any] | None = None
    """As the rank has told it (hooks/examine/in_time_save.py)."""
    missing: str = ""
    """Why it has told nothing; it may have begun all the same."""


class FileSought(_Message, frozen=True, kw_only=True, tag="file_sought"):
    """Answer to SeekFile; why: it can't be seen on this node."""

    request: int
    global_rank: int
    why: str = ""


class DataSaved(_Message, frozen=True, kw_only=True, tag="data_saved"):
    """A rank has saved; the numbers as supervisor/collect/ranks/ledgers.SaveSeen has them."""

    attempt: int
    global_rank: int
    own_steps: int
    step: int
    began_ns: int
    size: int
    mtime_ns: int
    places: dict[int, list[DataPlace]]
    """How far the node's ranks were with their data by these steps."""


class DataReported(_Message, frozen=True, kw_only=True, tag="data_reported"):
    """Answer to ReportData; and once more before the attempt's AttemptStopped."""

    attempt: int
    done: int
    places: dict[int, list[DataPlace]]


class Looked(_Message, frozen=True, kw_only=True, tag="looked"):
    """Answer to LookNow."""

    ask: int
    ranks: list[RankLook]
    missing: dict[int, str] = {}
    took_s: float = 0.0


class Examined(_Message, frozen=True, kw_only=True, tag="examined"):
    """Answer to Examine."""

    ask: int
    answers: dict[int, dict[str, Any]] = {}
    """What ranks have told of themselves."""
    missing: dict[int, str] = {}
    """Why others have not."""


class BoardsReported(_Message, frozen=True, kw_only=True, tag="boards_told"):
    """Answer to ReportBoards."""

    ask: int
    attempt: int
    at_s: float
    """The run's seconds."""
    rows: list[RankRow]
    notes: list[str] = []
    failed_hooks: list[str] = []
    """The newest of both."""


class SharesReported(_Message, frozen=True, kw_only=True, tag="shares_told"):
    """What the node's ranks spent an attempt's time on; before its AttemptStopped."""

    attempt: int
    ranks: Shares


class SnapshotAnswer(_Message, frozen=True, kw_only=True, tag="snapshot_answer"):
    """Answer to SnapshotOrder; ask 0: nobody has asked, and it is told what may be needed once this node is gone."""

    ask: int
    attempt: int
    copies: dict[int, list[tuple[int, bytes]]] = {}
    """By global rank: slots, and their records (hooks/wire/snapshot_index.py), in the run's nanoseconds."""
    firsts: dict[int, tuple[int, int]] = {}
    """What ranks' first calls named, as their boards have it."""
    idle: dict[int, int] = {}
    """Ranks that have never called, and the steps that they have finished."""
    free: int = 0
    """The first number of a name that is free; of those that were given: their own."""
    why: str = ""
    """Why it was not done."""


class MirrorOffer(_Message, frozen=True, kw_only=True, tag="mirror_offer"):
    """This node has copies of its ranks' parts of a state, for another one to keep: MirrorTo is the answer."""

    attempt: int
    key: str
    """By which it comes: a public one."""


class MirrorReady(_Message, frozen=True, kw_only=True, tag="mirror_ready"):
    """Answer to MirrorOpen: where it may come."""

    attempt: int
    source: str
    address: str
    port: int
    key: str
    """The listener's."""


class ImportsReported(_Message, frozen=True, kw_only=True, tag="imports_reported"):
    """Answer to ReportImports; none as long as not all ranks of the node have done a step."""

    imports: bytes
    """Which modules, and which variables their script has set: JSON, compressed by zlib."""


class Probed(_Message, frozen=True, kw_only=True, tag="probed"):
    """Answer to Probe: where this node's listener is, and what should be alike on all."""

    address: str
    """That its ranks' store would have."""
    port: int = 0
    facts: NodeEnvironment = NodeEnvironment()
    error: str = ""


class Met(_Message, frozen=True, kw_only=True, tag="met"):
    """Answer to Meet."""

    meetings: list[ProbeResult]


class Warmed(_Message, frozen=True, kw_only=True, tag="warmed"):
    """Answer to Warm: torch is there, on so many devices."""

    devices: int = 0
    port: int = 0
    """Of a store that others can join."""
    error: str = ""


class Added(_Message, frozen=True, kw_only=True, tag="added"):
    """Answer to Add."""

    took_s: float = 0.0
    error: str = ""


class CheckAnswer(_Message, frozen=True, kw_only=True, tag="check_answer"):
    """A node's part in a step of a check."""

    check: int
    step: int
    answer: Probed | Met | Warmed | Added


# Down ----------------------------------------------------------------------------------------------------------


class SetBase(_Message, frozen=True, kw_only=True, tag="set_base"):
    """A rank's steps count from there."""

    attempt: int
    global_rank: int
    step: int


class AskChecks(_Message, frozen=True, kw_only=True, tag="ask_checks"):
    """How far are the ranks with their calls of should_checkpoint()? Checks is the answer."""

    number: int
    """Of the question."""
    ahead_s: float
    """For how long to look ahead."""


class SetCheckpoint(_Message, frozen=True, kw_only=True, tag="set_checkpoint"):
    """The call of should_checkpoint() that answers yes."""

    at: int
    attempt: int
    """Whose ranks are meant."""
    number: int
    """Of the order: its answer bears it."""
    by_s: float
    """The run's seconds: it is not set later than that."""
    request: int = 0
    """Whose answer is told (CheckpointAnswered); 0: a person's."""


class WithdrawCheckpoint(_Message, frozen=True, kw_only=True, tag="withdraw_checkpoint"):
    """That call is to be like any other; too late where a rank of the node has said yes to it."""

    at: int
    attempt: int


class ReportSteps(_Message, frozen=True, kw_only=True, tag="report_steps"):
    """How many steps have these ranks of the node finished, all of which are alive? Before one of the job's saves."""

    request: int
    attempt: int
    ranks: list[int]


class SaveHere(_Message, frozen=True, kw_only=True, tag="save_here"):
    """Have a rank of the node save in time (docs/just-in-time.md)."""

    request: int
    attempt: int
    global_rank: int
    step: int
    """The last that all have finished; 0: that it has, and the others may be further."""
    by_s: float
    """The run's seconds: nobody waits for it any more."""
    part: tuple[int, int] | None = None
    """Which part (from 0), of how many; None: all that is trained."""
    is_halting: bool = False
    """Training goes on until this step, which no rank has finished yet, and waits there."""
    token: str = ""
    """By which those find each other that save parts of one checkpoint."""
    pages: dict[int, bytes] = {}
    """Other nodes', as StepsReported has them."""


class SeekFile(_Message, frozen=True, kw_only=True, tag="seek_file"):
    """Can this be seen on the node, as it was written then?"""

    request: int
    global_rank: int
    """Who wrote it."""
    path: str
    written_ns: int


class ReportData(_Message, frozen=True, kw_only=True, tag="report_data"):
    """How far were the node's ranks with their data when so many steps of the attempt were done?"""

    attempt: int
    done: int


class HandedOut(_Message, frozen=True, kw_only=True, tag="handed_out"):
    """What the node's ranks of an attempt to come had been handed out before its checkpoint was written."""

    attempt: int
    account: bytes
    """JSON, as hooks/data/data_replay.py reads it."""


class LookNow(_Message, frozen=True, kw_only=True, tag="look_now"):
    """A person wants to see these ranks of the node; nothing is kept of it."""

    ask: int
    ranks: list[int]
    samples: int = 1


class Examine(_Message, frozen=True, kw_only=True, tag="examine"):
    """A person wants these ranks of the node to examine themselves (hooks/wire/examinations.py)."""

    ask: int
    ranks: list[int]
    what: str
    arguments: dict[str, Any]
    seconds: float
    """How long that takes there."""


class ReportBoards(_Message, frozen=True, kw_only=True, tag="tell_boards"):
    """A person wants to know how the ranks are doing."""

    ask: int


class SnapshotOrder(_Message, frozen=True, kw_only=True, tag="snapshot_order"):
    """What ranks have left in this node's memory (supervisor/saving/snapshots.py); SnapshotAnswer is the answer.

    list: what is there. prepare: parts are written beside their names. name: they get these. drop: what was written
    beside is removed.
    """

    ask: int
    attempt: int
    what: Literal["list", "prepare", "name", "drop"]
    parts: list[tuple[int, int, int]] = []
    """Global rank, slot, generation. Where they are written to is what the rank's own record says."""
    number: int = 0
    """Of the name."""
    by_s: float = 0.0
    """The run's seconds: not later than that."""


class MirrorOpen(_Message, frozen=True, kw_only=True, tag="mirror_open"):
    """Another node's copies are to be kept here; MirrorReady is the answer."""

    attempt: int
    source: str
    key: str
    """Whoever holds it is let in."""


class MirrorTo(_Message, frozen=True, kw_only=True, tag="mirror_to"):
    """Where this node's copies are to be sent."""

    attempt: int
    address: str
    port: int
    key: str


class ReportImports(_Message, frozen=True, kw_only=True, tag="report_imports"):
    """Say what this node's ranks have imported: ImportsReported is the answer."""


class WarmUp(_Message, frozen=True, kw_only=True, tag="warm_up"):
    """Have a warm process, by what other nodes' ranks have imported."""

    imports: bytes
    """As ImportsReported has it."""


class Probe(_Message, frozen=True, kw_only=True, tag="probe"):
    """Open a listener for this check, and say what there is."""

    token: bytes
    """That callers will bring."""
    keep_s: float


class Place(_Message, frozen=True, kw_only=True, tag="place"):
    """Where a node's listener is."""

    node: str
    address: str
    port: int


class Meet(_Message, frozen=True, kw_only=True, tag="meet"):
    """Reach these."""

    places: list[Place]


class Warm(_Message, frozen=True, kw_only=True, tag="warm"):
    """Have torch ready in processes of their own; those that are ready stay."""


class Add(_Message, frozen=True, kw_only=True, tag="add"):
    """All-reduce together with another node, over the store that one of both serves."""

    address: str
    port: int
    prefix: str
    first_rank: int
    ranks: int


class CheckStep(_Message, frozen=True, kw_only=True, tag="check_step"):
    """A node's part in the next step of a check; CheckAnswer with the same numbers is the answer."""

    check: int
    step: int
    what: Probe | Meet | Warm | Add


class EndCheck(_Message, frozen=True, kw_only=True, tag="end_check"):
    """Nothing of a check is to be left."""


Up = (
    ev.Event
    | Serving
    | Raw
    | Loaded
    | Checks
    | CheckpointSet
    | CheckAnswer
    | Looked
    | Examined
    | BoardsReported
    | SharesReported
    | StepsReported
    | SavedHere
    | FileSought
    | SnapshotAnswer
    | MirrorOffer
    | MirrorReady
    | ImportsReported
    | DataSaved
    | DataReported
)
Down = (
    Start
    | Stop
    | Finish
    | TakeLook
    | ReadExits
    | Isolate
    | SetBase
    | AskChecks
    | SetCheckpoint
    | WithdrawCheckpoint
    | CheckStep
    | EndCheck
    | LookNow
    | Examine
    | ReportBoards
    | ReportSteps
    | SaveHere
    | SeekFile
    | SnapshotOrder
    | MirrorOpen
    | MirrorTo
    | ReportImports
    | WarmUp
    | ReportData
    | HandedOut
)
