"""The calls page: a file of shared memory in which a rank's hooks leave its last torch.distributed calls.

One file a rank and attempt beside the board, made by the rank when torch.distributed is imported. Aligned 64-bit words
as on the board: header, process groups, strings, a ring of records, and the text of the strings. A reader needs
neither the GIL nor the rank's cooperation. Strings are only ever added, and counted when they are whole. A record
carries its number at both ends, 0 while it is written: a reader takes those whose ends agree.

Times are CLOCK_MONOTONIC nanoseconds, 0 never. Numbers are -1 where unknown.
"""

from __future__ import annotations

from enum import IntEnum

SIZE_BYTES = 65536
MAGIC = 0x67756172_64_CA11_02

MAX_GROUPS = 64
MAX_STRINGS = 384
"""String 0 is the empty one."""
MAX_RECORDS = 160
MAX_DIMS = 12
"""Words for shapes in a record: for each tensor how many dimensions it has, and one more, then these; 0 ends."""


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    RECORDS = 2
    """Records begun so far; the ring holds the last MAX_RECORDS."""
    GROUPS = 3
    STRINGS = 4
    TEXT_BYTES = 5
    RECORDER_FD = 6
    """The descriptor on which torch's worker server listens in this process; -1 none."""
    RECORDER_INODE = 7
    """The inode of that socket: whoever connects makes sure first that the descriptor is still this one."""
    RECORDER_TROUBLE = 8
    """String: why there is no worker server; 0 while nobody has tried."""
    WAITING = 9
    """The number of the record whose handle is being waited for; 0 none, or one without a record."""
    ENTRIES_TROUBLE = 10
    """String: why nobody may ask the recorder for its entries, ever; 0 where one may."""
    PIPE = 11
    """String: the named pipe by which torch is asked for a dump, where there can be no worker server; 0 none."""
    DUMP = 12
    """String: the file into which torch writes it."""


class Group(IntEnum):
    """Index of a word of a process group's entry."""

    STATE = 0
    """How often the entry was taken << 1, and 1 while the group lives; 0 never taken."""
    NAME = 1
    """String."""
    DESC = 2
    """String."""
    RANKS = 3
    """String: global ranks as `first:step:count`, or separated by commas; empty unknown."""
    BACKEND = 4
    """String."""
    SEQ_CALL = 5
    """torch's count of the group, as the last call left it."""
    SEQ_HEART = 6
    """The same as the hooks' thread last read it."""
    SEQ_P2P = 7
    """How much of torch's count were sends and receives: gloo counts these too, NCCL doesn't."""
    MADE_NS = 8
    TIMEOUT_NS = 9
    """That the script itself gave it; 0 none, or torch's own default."""


class Record(IntEnum):
    """Index of a word of a record."""

    HEAD = 0
    FLAGS = 1
    """The index into OPS in the low byte, bits of Flag above."""
    GROUP = 2
    """The index of its group's entry, and above GROUP_BITS how often that had been taken."""
    SEQ_BEFORE = 3
    """The group's collectives so far when it was called, sends and receives left out."""
    SEQ_AFTER = 4
    """The same when it returned; -1 before."""
    AT_NS = 5
    DONE_NS = 6
    """When it was known to be done: at its return, or for an asynchronous one when it had been waited for."""
    PLACE = 7
    """Who called: the file's string << 48 | the function's << 32 | line."""
    PEER = 8
    """The other global rank of a send or a receive; -1 any, or none."""
    DTYPE = 9
    """String, of the first tensor."""
    P2P_NUMBER = 10
    """Of a send or a receive: which one it is among those of its group with this peer in this direction, from 1."""
    DIMS = 11
    TAIL = DIMS + MAX_DIMS


class Flag(IntEnum):
    """Bits of Record.FLAGS."""

    ASYNC = 1 << 8
    """It returned a handle: that it returned doesn't say that it is done."""
    P2P = 1 << 9
    RETURNED = 1 << 10
    RAISED = 1 << 11
    CUT = 1 << 12
    """Not all tensors' shapes had room."""


RECORDER_THREAD = "pt_workerserver"
"""The name of each of the worker server's threads."""

GROUP_WORDS = 10
GROUP_BITS = 8
RECORD_WORDS = 24
GROUPS_AT = 32
STRINGS_AT = GROUPS_AT + MAX_GROUPS * GROUP_WORDS
RECORDS_AT = STRINGS_AT + MAX_STRINGS
TEXT_AT = (RECORDS_AT + MAX_RECORDS * RECORD_WORDS) * 8
"""In bytes; the others in words."""
MAX_TEXT_BYTES = SIZE_BYTES - TEXT_AT


def calls_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's calls page inside the run's socket folder."""
    return f"calls-{attempt}-{global_rank}"


def recorder_name(attempt: int, global_rank: int) -> str:
    """The file name of the socket on which torch answers about a rank, in the same folder."""
    return f"fr-{attempt}-{global_rank}"


def pipe_name(attempt: int, global_rank: int) -> str:
    """The beginning of the name of the pipe by which torch's own dump is asked for, in the same folder."""
    return f"pipe-{attempt}-{global_rank}-"


def pack_ranks(ranks: list[int]) -> str:
    """Write the members of a group; empty where they don't fit a line."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step and ranks == list(range(ranks[0], ranks[0] + step * len(ranks), step)):
            return f"{ranks[0]}:{step}:{len(ranks)}"
    text = ",".join(map(str, ranks))
    return text if len(text) <= 2000 else ""
