"""What a rank may say to the supervisor: one msgpack-encoded struct a ZeroMQ frame, rank PUSH to supervisor PULL.

Nothing here is awaited by training: a message that can't be sent at once is dropped and counted.
Hot state (steps, phase, collector) travels in shared memory (`guardrun.hooks.wire.board`), not here.
Times are CLOCK_MONOTONIC nanoseconds of the host unless a name says otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

WIRE_VERSION = 1

# Bounds that both sides keep: what is longer is cut by the sender and dropped by the receiver.
MAX_MESSAGE_BYTES = 256 * 1024
MAX_TEXT_CHARS = 32 * 1024


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    attempt: int
    global_rank: int
    pid: int


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The hooks are active in this rank; sent once, first."""

    version: int = WIRE_VERSION
    local_rank: int
    world_size: int
    node: str
    python: str
    argv: list[str]
    devices: dict[str, str] = {}
    """The variables that say which devices this process may use, as they are by then."""


class Beat(_Message, frozen=True, kw_only=True, tag="beat"):
    """Once a second: what the board cannot carry."""

    sent_ns: int
    group_seqs: dict[str, int] = {}
    """Per process group (its name): the collectives issued so far, as torch counts them."""
    dropped: int = 0
    """Messages this rank could not send so far."""
    data: dict[str, Any] = {}
    """Once a silence: the batch at which training stands, as hooks.dataloaders.Batches.describe_still has it."""


class DeviceReported(_Message, frozen=True, kw_only=True, tag="device"):
    """The device that this rank trains on, as torch knows it; again when it is another."""

    device_type: str
    """As torch names it: `cuda`, `xpu`, `npu`, …; `hip` for ROCm's, which torch calls `cuda`."""
    index: int
    """As torch counts in this process; -1 unknown."""
    uuid: str = ""
    """Of the device, or of its MIG instance, without `GPU-` or `MIG-`; empty where torch does not tell it."""
    bus: str = ""
    """`0000:3b:00`; likewise."""
    is_alone: bool = True
    """False: there are several, and index, uuid and bus say nothing."""


class CheckpointSaved(_Message, frozen=True, kw_only=True, tag="saved"):
    """A save returned: torch.save, or torch.distributed.checkpoint's save. Urgent."""

    path: str
    """Absolute."""
    writer: str
    """`torch.save` or `dcp`."""
    step: int
    """Steps that this rank had done in this attempt, as `Board.step` counts them, the resumed base included."""
    began_ns: int
    ended_ns: int
    inode: int = 0
    """Of that file or folder: it may be renamed before this is read. 0: not known."""
    own_steps: int = -1
    """Steps that this rank had done in this attempt by then, as Field.STEP counts; -1: not known."""
    size: int = -1
    mtime_ns: int = 0
    """Of that file, or of the one that completes that folder; -1 and 0: not known."""


class SaveFailed(_Message, frozen=True, kw_only=True, tag="save_failed"):
    """A save raised: where it was writing to. Torch's writer does not say that a disk is full, and which."""

    path: str
    """Absolute."""


class LoadFailed(_Message, frozen=True, kw_only=True, tag="load_failed"):
    """A load raised: what it was reading. Torch's reader does not say which file it is that can't be read."""

    path: str
    """Absolute."""


class CheckpointLoaded(_Message, frozen=True, kw_only=True, tag="loaded"):
    """A load of a file or folder returned (torch.load, dcp load, or `guardrun.hooks.resume_from()` was asked)."""

    path: str
    reader: str
    has_stepped: bool = False
    """The rank had done a step by then."""


class UncaughtException(_Message, frozen=True, kw_only=True, tag="raised"):
    """An exception nobody caught: the interpreter is about to end. Urgent; also left as a file beside the board."""

    at_ns: int
    error: str
    """The exception's type, qualified: `torch.OutOfMemoryError`."""
    message: str
    traceback: str
    frames: list[tuple[str, str, int]]
    """(file, function, line), outermost first."""
    data: dict[str, Any] = {}
    """The batch that training had last, as hooks.dataloaders.Batches.describe has it; empty unknown."""


class GcHeld(_Message, frozen=True, kw_only=True, tag="gc_held"):
    """Collections took a second or more of one step so far; again whenever that has grown by a quarter. Urgent."""

    duration_s: float
    """Without the time for which a full one waited for a core."""
    lasted_s: float
    """With it."""
    generation: int
    collected: int
    tracked: int
    """Objects the collector tracks after it; -1 where counting would cost too much, or touch what the script froze."""
    step: int


class BatchesNamed(_Message, frozen=True, kw_only=True, tag="batches"):
    """A step of this rank was not finite, the first after one that was: the batches around it."""

    step: int
    """As `Board.step` counts, the resumed base included."""
    loader: str
    """Which of the script's data loaders training takes its steps from: the same in each attempt; empty unknown."""
    why: str
    """Why they cannot be left out by their indices; empty: they can."""
    ahead: int
    """Batches that are taken before they are trained on: 0, of loaders that fetch ahead 1; else it is unknown."""
    origin: str = ""
    """Which module's output or gradient was the first that is not finite, in words; empty unknown."""
    batches: list[tuple[int, int, int, int, list[int]]]
    """Each: the step under way when it was taken, the number of the pass over the sampler, its epoch (-1 unknown), the
    position in the pass from 1, the indices."""


class ModulesDied(_Message, frozen=True, kw_only=True, tag="died"):
    """What modules give out, or its gradients, has been all zeros for long, and was not before. Once an attempt.

    Or (`input`) what the model is given has been one number all over since the first step, or (`empty`) has been no
    sample at all. Likewise.
    """

    step: int
    """As `Board.step` counts, the resumed base included; …"""
    since: int
    """… and the first one at which it was seen so."""
    what: str
    """`output`, `gradient`, `input`, or `empty`."""
    modules: list[str]
    """The first ones, in the order in which they are called: `encoder.2.act (ReLU)`."""
    count: int
    """How many there are in all."""
    looks: int
    """At how many steps in a row, one in `every`."""
    every: int
    alive: int
    """At how many before that it was well."""


class GradientsGrew(_Message, frozen=True, kw_only=True, tag="grew"):
    """Gradients of a group of modules are far larger than usual."""

    step: int
    """As `Board.step` counts, the resumed base included."""
    groups: list[tuple[str, float, float]]
    """Each: its name, which norm was usual, and which one it has now; what has grown most comes first."""
    count: int
    """How many groups there are in all."""


class BatchesLeftOut(_Message, frozen=True, kw_only=True, tag="left_out"):
    """Batches were left out, as the launcher's file said: training never saw them."""

    order: str
    step: int
    """At which they were met the last time."""
    batches: list[list[int]]


class DataReplayed(_Message, frozen=True, kw_only=True, tag="replayed"):
    """After a resume: whether samples are trained on again, or left out. Of a loader the last one counts."""

    status: str
    """`skipped`, `continued`, `repeated`, `left_out`, `reordered`, `unknown`."""
    loader: str
    """Which of the script's, as BatchesNamed has it; empty: none."""
    epoch: int
    """Of its sampler; -1: not known."""
    batches: int
    samples: int
    """Trained on in this pass before the checkpoint, by this rank."""
    repeated: int
    left_out: int
    """Samples."""
    passed_over: int
    """Batches that the script has passed over by itself after the skip: it was given the same one again."""
    why: str


class Ended(_Message, frozen=True, kw_only=True, tag="ended"):
    """The script's main code ended and the interpreter is finalising."""

    at_ns: int


class EnvironmentReported(_Message, frozen=True, kw_only=True, tag="environment"):
    """What global rank 0 computes with; once an attempt, when its first step is done."""

    script: str
    """Absolute path of `__main__`'s file; empty: it has none."""
    modules: list[str]
    """Files of imported modules that are neither Python's nor installed; …"""
    more_modules: int
    """… and how many more there are."""
    path: list[str]
    """sys.path, absolute."""
    runtime: dict[str, str]
    flags: dict[str, str]
    seed: int | None
    variables: dict[str, str]
    """With secrets, if there are any: they are for no file."""
    device: str


class HookFailed(_Message, frozen=True, kw_only=True, tag="hook_failed"):
    """A hook could not do its work and has stepped aside. Once for each hook."""

    hook: str
    error: str


class Noted(_Message, frozen=True, kw_only=True, tag="noted"):
    """What a person may want to know of the hooks, and is no failure."""

    topic: str
    text: str


RankMessage = (
    Hello
    | Beat
    | DeviceReported
    | CheckpointSaved
    | SaveFailed
    | LoadFailed
    | CheckpointLoaded
    | UncaughtException
    | GcHeld
    | BatchesNamed
    | ModulesDied
    | GradientsGrew
    | BatchesLeftOut
    | DataReplayed
    | Ended
    | EnvironmentReported
    | HookFailed
    | Noted
)
