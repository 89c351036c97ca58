"""What launcher, supervisor and guardctl say to each other, over one ZeroMQ ROUTER on a Unix socket.

With it, what ranks' boards show, for whoever asks how the run is doing.

The launcher and guardctl are DEALERs. Each frame is one msgpack-encoded struct. The launcher numbers its facts and
keeps them until the supervisor has acknowledged (journalled) them, so that a supervisor that dies loses none; orders
are idempotent by attempt. Times: `…_ns` are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.actions import SkipOrder, StartAttempt
from guardrun.supervisor.engine.model.events import Checkpoint, Rank

MAX_CONTROL_BYTES = 1024 * 1024

BEATS_SOCKET = "beats"
CONTROL_SOCKET = "control"
"""Names inside the run's socket folder."""


class _Wire(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# Launcher → supervisor ------------------------------------------------------------------------------------------


class LauncherHello(_Wire, frozen=True, kw_only=True, tag="launcher_hello"):
    """First on every connection (a restarted supervisor gets it again): who is alive right now."""

    pid: int
    world_size: int
    attempt: int
    """-1 before the first."""
    alive: list[Rank]
    is_first: bool
    """This launcher has not been heard before (the supervisor's first start for it)."""
    error_files: dict[int, str] = {}
    stderr_files: dict[int, str] = {}
    stderr_from: int = -1
    """Of that attempt, as Started has them."""
    lease: Lease | None = None
    """Of that attempt, where the node was cut off when its last supervisor spoke."""


class Serving(_Wire, frozen=True, kw_only=True, tag="serving"):
    """The store of an attempt is served here: the other nodes' ranks can be started. Before Started."""

    seq: int
    attempt: int
    address: str
    port: int


class Started(_Wire, frozen=True, kw_only=True, tag="started"):
    """An attempt's ranks run, or `error` says why they could not be started."""

    seq: int
    attempt: int
    ranks: list[Rank]
    checkpoint: Checkpoint | None = None
    error: str = ""
    """Not empty: the ranks could not be started."""
    error_files: dict[int, str] = {}
    """Per global rank: where torchrun's convention puts its error file."""
    stderr_files: dict[int, str] = {}
    """Per global rank, where its stderr goes to a file of its own."""
    stderr_from: int = -1
    """Where it begins in the launcher's own stderr, which ranks without a file of their own share, where that is a
    regular file; -1: it is none."""


class Opened(_Wire, frozen=True, kw_only=True, tag="opened"):
    """Somebody here has read from a checkpoint of the run, for the first time in this attempt."""

    seq: int
    attempt: int
    path: str = ""
    trouble: str = ""
    """Not empty: nobody can see it here."""


class Exited(_Wire, frozen=True, kw_only=True, tag="exited"):
    """A rank's process has ended. exitcode: as subprocess has it, negative for a signal."""

    seq: int
    attempt: int
    global_rank: int
    pid: int
    exitcode: int
    at_ns: int
    refusal: str = ""
    """As RankExited has it."""


class Stopped(_Wire, frozen=True, kw_only=True, tag="stopped"):
    """Nothing of the attempt is alive any more; fields as in AttemptStopped."""

    seq: int
    attempt: int
    exitcodes: dict[int, int]
    stopped_by_us: list[int]
    survivors: list[int] = []
    took_s: float = 0.0


class Signalled(_Wire, frozen=True, kw_only=True, tag="signalled"):
    """guardrun was told to end; it stops the ranks itself and then sends Stopped, unless it is a notice."""

    seq: int
    signum: int
    is_notice: bool = False
    """It says that the job is about to end: the ranks go on until an order comes."""
    is_forwarded: bool = False
    """The ranks that have a handler for it were given it."""
    catchers: list[int] = []
    """Those that have one, and were not given it."""
    at_ns: int = 0
    """When a notice came, CLOCK_MONOTONIC: before any rank was given it."""


# Supervisor → launcher ------------------------------------------------------------------------------------------


class Lease(_Wire, frozen=True, kw_only=True, tag="lease"):
    """What a node that does not lead keeps its ranks by (`ranks_end_s`): said to the launcher once a second.

    Times are seconds of `boot_s`.
    """

    attempt: int
    at_s: float
    """When it was said."""
    contact_s: float
    progress_s: float
    term_s: float
    still_s: float


class Ack(_Wire, frozen=True, kw_only=True, tag="ack"):
    """All facts up to `seq` are in the journal; 0: only a sign of life."""

    seq: int


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This node's part in an attempt of several nodes."""

    group_rank: int
    nodes: int
    first_rank: int
    """Global rank of its first."""
    world_size: int
    role_rank: int = 0
    """Of its first, among the ranks of all nodes that have the same --role, …"""
    role_size: int = 0
    """… and how many these are; 0: not known, every node has the same."""
    address: str = ""
    """Where the store is served (MASTER_ADDR); empty: here."""
    port: int = 0
    run_id: str = ""
    """The job's: only its head has the run directory."""


class Start(_Wire, frozen=True, kw_only=True, tag="start"):
    """Start an attempt's ranks; Started is the answer."""

    attempt: int
    checkpoint: Checkpoint | None = None
    is_detailed: bool = False
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL, unless the user has set it."""
    siblings: list[str] = []
    is_guarded: bool = False
    """As StartAttempt has them, …"""
    skips: list[SkipOrder] = []
    is_cold: bool = False
    """… and these."""
    place: Place | None = None
    """None: the job has this node alone."""


def start_of(action: StartAttempt, place: Place | None = None) -> Start:
    """The engine's order for one launcher."""
    return Start(
        attempt=action.attempt,
        checkpoint=action.checkpoint,
        is_detailed=action.is_detailed,
        siblings=action.siblings,
        is_guarded=action.is_guarded,
        skips=action.skips,
        is_cold=action.is_cold,
        place=place,
    )


class Stop(_Wire, frozen=True, kw_only=True, tag="stop"):
    """End an attempt's ranks: SIGTERM, after grace_s SIGKILL. Stopped is the answer."""

    attempt: int
    grace_s: float
    is_last: bool = False
    """No attempt follows: torchrun's agent, where it runs them, is ended with its ranks."""


class Finish(_Wire, frozen=True, kw_only=True, tag="finish"):
    """The run is over: guardrun exits with exit_code."""

    exit_code: int
    is_preempted: bool = False
    """The scheduler ended the job: no rank has failed."""
    words: str = ""
    """For the terminal of a node that does not lead: why, in a sentence."""


# guardctl ↔ supervisor ------------------------------------------------------------------------------------------


class Ask(_Wire, frozen=True, kw_only=True, tag="ask"):
    """verb: status, stacks, look, hold, unhold, checkpoint, restart, examine."""

    verb: str
    arguments: dict[str, Any] = {}


class Answer(_Wire, frozen=True, kw_only=True, tag="answer"):
    """Answer to an Ask. error: why not, in a sentence for a person; empty where is_ok."""

    is_ok: bool
    data: dict[str, Any] = {}
    error: str = ""


Fact = Serving | Started | Opened | Exited | Stopped | Signalled
"""What launchers number and keep until it is acknowledged."""
ToSupervisor = LauncherHello | Fact | Ask
ToLauncher = Ack | Start | Stop | Finish | Lease


# Rank rows ----------------------------------------------------------------------------------------------------------
# What ranks' boards show, read on their own nodes: for whoever asks how the run is doing, and for its summary.


MAX_SHARES = 64
"""Ranks whose shares are shown one by one."""


class RankRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank, as its board shows it; what no hooks have written there is None."""

    global_rank: int
    has_hooks: bool = False
    step: int | None = None
    step_time_s: float | None = None
    phase: str = ""
    beat_age_s: float | None = None
    """Since its hooks' own thread last showed that it runs."""
    progress_age_s: float | None = None
    data_share: float | None = None
    """Of the attempt's time: waiting for data."""
    gc_share: float | None = None
    """Of the attempt's time: in collections."""


Shares = dict[int, tuple[float, float]]
"""Per rank, of the attempt's time up to its last progress: waiting for data, and in collections."""


def shares_json(ranks: Shares, untold: Sequence[str] = ()) -> dict[str, Any]:
    """What time was spent on, of all ranks on average and of each; empty where no rank has hooks.

    untold: nodes whose ranks are not among them.
    """
    if not ranks:
        return {}
    mean = [round(sum(share[which] for share in ranks.values()) / len(ranks), 4) for which in (0, 1)]
    shown = {str(number): {"data": data, "gc": gc} for number, (data, gc) in sorted(ranks.items())[:MAX_SHARES]}
    return {"data": mean[0], "gc": mean[1], "ranks": shown, **({"not_told": list(untold)} if untold else {})}
