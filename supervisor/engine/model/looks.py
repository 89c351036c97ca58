"""What a look at the ranks shows: plain facts gathered by the collectors, judged by the core.

Seconds are the engine's (`now_s`), counted from the run's creation, unless a name says otherwise.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

PYSPY = "py-spy"
"""Source of stacks that were read from outside, without waking the process."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One Python frame."""

    function: str
    file: str
    """As py-spy gives it; the collector shortens nothing."""
    line: int


class Library(str, Enum):
    """Whose a library of native code is."""

    CUDA = "cuda driver"
    """The driver's or the runtime's (libcuda, libcudart): it waits for its device."""
    NCCL = "nccl"
    """NCCL's or RCCL's: it waits for its device, or for other ranks."""
    HIP = "hip"
    """ROCm's: it waits for its device."""
    LEVEL_ZERO = "level zero"
    """Intel's: likewise."""
    OTHER = "other"
    """Somebody else's: the user's own, torch's, BLAS. It computes."""


class NativeSpot(msgspec.Struct, frozen=True, array_like=True):
    """Where a thread runs below Python."""

    family: Library
    function: str
    """What was called of the library; empty where it has no name."""
    library: str
    """The file's name."""


class ThreadLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thread of a process."""

    tid: int
    name: str = ""
    is_main: bool = False
    owns_gil: bool = False
    cpu_s: float = 0.0
    """CPU time used so far, user and system."""
    switches: int = 0
    """Context switches so far, voluntary and not."""
    is_timed: bool = False
    """It sleeps until a time of its own choice, as what monitors does between two turns. Never said of the main one."""
    read_bytes: int = 0
    """What it has read so far, by files' and pipes' calls, …"""
    reads: int = 0
    """… in so many; 0 of the main one, and where that is not known."""
    frames: list[Frame] = []
    """Innermost first; at most 60 (the outermost are cut). Empty where no Python runs or no stack could be taken."""


class ProcessLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process: a rank, or a descendant of one."""

    pid: int
    ppid: int = 0
    command: str = ""
    state: str = "?"
    """The letter of /proc/PID/stat: R S D T t Z X; `?` where it is gone or could not be read."""
    wchan: str = ""
    """Kernel function a T or D process waits in."""
    cpu_s: float = 0.0
    """Without the hooks' own thread."""
    switches: int = 0
    """Likewise."""
    delay_s: float = 0.0
    """For how long its main thread has been ready to run so far and had no CPU; 0 where the kernel does not tell."""
    io_bytes: int = 0
    """Bytes read and written so far (rchar + wchar of /proc/PID/io), of a rank without what its other threads have
    read; -1 where it may not be read."""
    beside_bytes: int = 0
    """What those have read, …"""
    beside_reads: int = 0
    """… in so many calls. Monitors read /proc, little a call, whatever the rank does."""
    faults: int = -1
    """Page faults so far, minor and major; -1 unknown."""
    threads: list[ThreadLook] = []
    """Those with Python frames, the main one first; bounded."""
    variety: list[list[Frame]] = []
    """Where a busy main thread was: the distinct innermost frames (at most 6, innermost first) of several samples taken
    within a fraction of a second. Empty where it used no CPU, or could be sampled once only."""
    pauses: int = 0
    """How often guardrun has begun and ceased to pause it for native frames: odd while it may be paused."""
    native: NativeSpot | None = None
    """Where it runs below its innermost Python frame, without end; None where that was not asked, or not told."""
    source: str = ""
    """Where the stacks are from: py-spy, faulthandler, or nothing."""
    trouble: str = ""
    """Why there are no (better) stacks."""
    file: str = ""
    """The file that its main thread waits for in the kernel, where its system call names one and it is in D."""
    dead_mount: str = ""
    """The mount that it waits for and that does not answer: of that file, or one that it has files open on."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One collective (or send, or receive) that a rank has issued in one process group."""

    seq: int
    """The group's own number of it, from 1: equal on all its members. Point-to-point calls count apart."""
    op: str
    """torch's function: all_reduce, all_gather_into_tensor, …"""
    sizes: list[list[int]] = []
    """Shapes of what goes in."""
    dtype: str = ""
    """float32, …"""
    state: str = "issued"
    """issued, or completed; started in between, where its device tells (TORCH_NCCL_ENABLE_TIMING)."""
    at_s: float = 0.0
    """When it was issued; 0 unknown."""
    frame: Frame | None = None
    """The user's line that called it; None where only torch's own code did (DDP's reducer), or nothing tells."""
    peer: int = -1
    """The other global rank of a send or a receive; -1 for collectives, and where it is any or unknown."""


class GroupLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's own account of one process group that it is a member of."""

    name: str
    """torch's name of the group: equal on all its members. `0` is the default group's as a rule."""
    desc: str = ""
    """default_pg, or what the script called it; empty unknown."""
    backend: str = ""
    """nccl, gloo, …; empty unknown."""
    part: str = ""
    """The backend again, where torch's group has another one besides, with calls and numbers of its own."""
    ranks: list[int] = []
    """Global ranks of its members; empty unknown."""
    issued: int = 0
    """Number of the last collective issued; 0 none."""
    completed: int = -1
    """Number of the last one completed; -1 unknown."""
    calls: list[Call] = []
    """The last ones, oldest first, what is not completed among them; bounded."""
    timeout_s: float = 0.0
    """That the script itself has given it (`timeout=`); 0: none, or not known."""
    source: str = ""
    """flight recorder, hooks, or both."""


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of the node at the moment of a look."""

    name: str
    """load, memory available, /scratch free, …: as a person reads it."""
    value: float
    unit: str = ""
    is_odd: bool = False
    """Worth a person's look."""
    note: str = ""


class RankLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank and everything below it at one moment."""

    global_rank: int
    at_s: float
    process: ProcessLook
    children: list[ProcessLook] = []
    """All descendants; bounded."""
    socket_bytes: int = -1
    """Bytes its TCP sockets sent and received so far; -1 where it cannot be known."""
    gpu_busy: float = -1.0
    """Share of the last second its device worked, 0 to 1; -1 unknown."""
    heart_s: float = 0.0
    """When the hooks' thread last wrote the board; 0 = never, or no hooks."""
    in_collective: str = ""
    """The torch.distributed function it is inside of, as its hooks see it."""
    collective_since_s: float = 0.0
    collectives: int = 0
    group_seq: int = 0
    in_init_since_s: float = 0.0
    in_data_since_s: float = 0.0
    in_save_since_s: float = 0.0
    gc_since_s: float = 0.0
    milestones: int = 0
    """Bits of guardrun.hooks.wire.board.Milestone."""
    phase: str = ""
    groups: list[GroupLook] = []
    """Its process groups, as the flight recorder and the hooks have them; bounded."""
    standstill: str = ""
    """Why nothing in this machine could end its wait any more, as a clause; empty where something could."""
    standstill_key: str = ""
    """What each of its threads waits for: equal in two looks, it was the same standstill in between."""
    groups_trouble: str = ""
    """Why `groups` is empty or says less than it might."""
    device_counts: dict[str, list[int]] = {}
    """As observation.device_counts has them; empty where no recorder of a device's calls has answered."""
    is_unread: bool = False
    """It has groups of a device whose calls nobody can read: what is known of them its hooks have counted, while the
    GIL let them."""
    data_share: float = -1.0
    """Share of the attempt's time in which its training thread waited for data; -1 unknown."""
    gc_share: float = -1.0
    """Share of the attempt's time that its collector took; -1 unknown."""
    batches: int = 0
    """That its training thread has got from data loaders since the attempt began."""
    batch: dict[str, Any] = {}
    """The batch at which its training stood when it was last still, as hooks.dataloaders.Batches has it."""
