"""The board: a page of shared memory in which a rank's hooks write and the supervisor reads.

One file a rank and attempt, 4096 bytes, created and filled (posix_fallocate, so that a full disk can never
turn a write into SIGBUS) by the supervisor's side before the rank starts. The rank maps it and stores aligned
64-bit words; x86-64 and aarch64 store those whole, so a reader sees old or new, never half.
Readers need neither the GIL nor the rank's cooperation: a rank whose GIL is held in C still shows where it is.

Times are CLOCK_MONOTONIC nanoseconds; 0 means never, or not now for fields named SINCE.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum

SIZE_BYTES = 4096
MAGIC = 0x6775617264_01  # "guard", layout 1


class Field(IntEnum):
    """Index of a 64-bit word. The writer is the rank unless said otherwise."""

    MAGIC = 0
    PID = 1
    HEART_NS = 2
    """Written once a second by the hooks' own thread: stale while the GIL is held, or the process stopped."""
    HEART_TID = 3
    """Native id of that thread, to leave it out when threads are judged."""
    PROGRESS_NS = 4
    """When anything last advanced: a pulse, a batch, a collective, a save, the API."""
    PULSES = 5
    """Optimizer steps of any optimizer. A pulse of progress, not a step counter."""
    STEP = 6
    """Steps done in this attempt: those of the optimizer that has done most, or what the API said."""
    STEP_BASE = 7
    """Step of the checkpoint that was loaded; added to STEP, unless the script says numbers (API_NUMBERS)."""
    STEP_NS = 8
    """When STEP last grew."""
    BATCHES = 9
    DATA_SINCE_NS = 10
    """Waiting in a DataLoader's __next__ since."""
    DATA_TOTAL_NS = 11
    COLLECTIVES = 12
    """Calls of torch.distributed's Python functions that communicate."""
    COLLECTIVE_SINCE_NS = 13
    """Inside one of them since."""
    COLLECTIVE_OP = 14
    """Which: index into OPS."""
    GROUP_SEQ = 15
    """torch's own count of collectives, summed over process groups; read by the hooks' thread once a second."""
    GC_SINCE_NS = 16
    """A collection has been running since."""
    GC_GENERATION = 17
    GC_COUNT = 18
    GC_TOTAL_NS = 19
    SAVE_SINCE_NS = 20
    SAVES = 21
    INIT_SINCE_NS = 22
    """Inside init_process_group or new_group since."""
    GROUPS = 23
    """Process groups made."""
    MILESTONES = 24
    """Bits of Milestone."""
    PHASE = 25
    """Index into PHASES, as the API or a hook said."""
    PHASE_SINCE_NS = 26
    DUMP_SIGNAL = 27
    """Signal whose faulthandler writes this process's stacks; 0 = none. Only to be sent while the GIL is held."""
    CHECKS = 28
    """Calls of should_checkpoint()."""
    CHECKPOINT_AT = 29
    """Written by the supervisor: the call of should_checkpoint() that answers yes; 0 = none."""
    API_CALLS = 30
    """Calls of step() and phase()."""
    CHECKPOINT_ACK = 31
    """The CHECKPOINT_AT that this rank has answered yes to."""
    COLLECTIVE_TOTAL_NS = 32
    """Time that the training thread has spent inside calls that communicate, and waiting for their handles."""
    SPENT_STEPS = 33
    """Ordinary steps that have been summed up (hooks/patches/steps.py), and what they took, written about once
    a second."""
    SPENT_NS = 34
    SPENT_WAITED_NS = 35
    SPENT_DATA_NS = 36
    SPENT_GC_NS = 37
    SPENT_TAIL = 38
    """SPENT_STEPS once more; another number while these six are being written."""
    JOINT_SEQ = 39
    """GROUP_SEQ, of process groups with ranks on other nodes only."""
    SAVE_HELD = 40
    """A save is kept waiting: it would write over a checkpoint that nobody has opened
    (hooks/saves/overwrite_guard.py)."""
    MAY_SAVE = 41
    """Written by the supervisor: somebody has opened one."""
    STACKS_ASKED = 42
    """Written by the supervisor: a number of its own, upon which the hooks' thread writes this process's stacks; …"""
    STACKS_GIVEN = 43
    """… when it has, the same number."""
    SERVER_ASKED = 44
    """Written by the supervisor: a number, upon which the hooks' thread starts torch's worker server if it may; …"""
    SERVER_GIVEN = 45
    """… when it has, or has said on the calls page why not, the same number."""
    CAPTURES = 46
    """Captures of device graphs under way. Nobody may ask a device for anything meanwhile; …"""
    READING_NS = 47
    """… and written by the supervisor: since when it is asking, for which a capture that begins waits a moment."""
    TIMEOUT_RAISED = 48
    """Written by the supervisor: it can read what devices do, and explain a hang before torch's own timeout."""
    EXAMINE_ASKED = 49
    """Written by the supervisor: the number of a person's request (hooks/wire/examinations.py); …"""
    EXAMINE_TAKEN = 50
    """… of the last one that the hooks' thread has read; …"""
    EXAMINE_GIVEN = 51
    """… and of the last one that it has answered."""
    SNAPSHOT_INDEX = 52
    """The descriptor of its snapshots' index (hooks/wire/snapshot_index.py), plus 1; 0: its script makes none."""
    SNAPSHOT_WANTED = 53
    """Bytes of memory that it wants for both of its copies; …"""
    SNAPSHOT_GRANTED = 54
    """… written by the supervisor: that it may have; -1: none any more; …"""
    SNAPSHOT_HELD = 55
    """… and that it has."""
    STOPPING = 56
    """Written by the supervisor: its attempt is to be stopped, and nobody asks it to save any more."""
    SNAPSHOT_FIRST = 57
    """In which step it first named a path, …"""
    SNAPSHOT_NAMED = 58
    """… and a checksum of it (hooks/wire/snapshot_index.py): the same on ranks that hold the same; 0: it has not."""
    PART = 59
    """Where what it trains is sharded, and save_with() has a function: which part it holds, from 1; 0: not known; …"""
    PARTS = 60
    """… of how many."""
    BACKWARD_AFTER = 61
    """The steps that were done (PULSES) when its last backward pass began, plus 1; only where a save_with() is."""


class Milestone(IntEnum):
    """How far a rank got; each a bit."""

    HOOKED = 1
    TORCH_IMPORTED = 2
    INIT_ENTERED = 4
    INIT_DONE = 8
    FIRST_PROGRESS = 16
    RESUMED = 32
    ENDED = 64
    API_STEPS = 128
    """The script counts its steps itself, by step()."""
    API_NUMBERS = 256
    """It says their numbers, which count from the run's beginning: STEP_BASE is not added, whenever it is written."""
    WAITS_UNSEEN = 512
    """Ranks wait for each other on devices, where nobody times that (hooks/patches/device_timing.py)."""
    SAVES_IN_TIME = 1024
    """Its script has given save_with() a function, and has not taken it back."""


PHASES: tuple[str, ...] = ("start", "train", "eval", "data", "save", "load", "init", "compile", "other")
"""What PHASE may hold. A phase() with a name that isn't here is `other`; its name travels in the phase file."""

OPS: tuple[str, ...] = (
    "none",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "broadcast_object_list",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "wait",
    "all_gather_single",
    "reduce_scatter_single",
    "send_object_list",
    "recv_object_list",
)
"""Where torch 2.13 names a function anew, both names are here: older scripts call one, newer ones the other."""


def board_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's board inside the run's socket folder."""
    return f"board-{attempt}-{global_rank}"


def import_names(ranks: int) -> list[str]:
    """The files beside the boards in which so many ranks of a node say what they import, the first one's first."""
    return ["imports.json", *(f"variables-set-{local}.json" for local in range(1, ranks))]


def create_board(path: str) -> None:
    """Make a board whose pages are really there.

    Raises OSError where the folder is full or not writable.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE_BYTES)
    finally:
        os.close(fd)


class Board:
    """A mapped board: `board[Field.STEP]` reads, `board.words[Field.STEP] = n` is the cheapest write."""

    def __init__(self, path: str) -> None:
        """Map the board at path; raises OSError or ValueError where there is none of the right size."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != SIZE_BYTES:
                raise ValueError(f"{path} is no board: it is not {SIZE_BYTES} bytes long")
            self._map = mmap.mmap(fd, SIZE_BYTES)
        finally:
            os.close(fd)
        self.words: memoryview = memoryview(self._map).cast("q")

    def __getitem__(self, field: Field) -> int:
        value: int = self.words[field]
        return value

    def read(self) -> list[int]:
        """All fields at once, indexed by Field."""
        return self.words[: len(Field)].tolist()

    def close(self) -> None:
        """Unmap the page; `words` must not be used after it. The file stays for the supervisor to read."""
        self.words.release()
        self._map.close()
