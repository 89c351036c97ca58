"""The samples page: a file of shared memory in which a rank's hooks leave what its training loaders began with.

One file a rank and attempt beside the board, made by the rank with its first record. Aligned 64-bit words: a header and
a list of records, one a pass over a loader, of which a rank writes MAX_RECORDS at most: nothing is ever written over.
A record counts once the header does.
"""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x67756172_64_40_01
MAX_RECORDS = 32
HEAD_WORDS = 8
RECORD_WORDS = 16
SIZE_BYTES = 8 * (HEAD_WORDS + RECORD_WORDS * MAX_RECORDS)


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    RECORDS = 2
    """Records written so far."""


class Record(IntEnum):
    """Index of a word of a record."""

    LOADER = 0
    """Which one: from 0, in the order in which passes over them were first recorded."""
    TURN = 1
    """Which recorded pass over this loader: from 0."""
    BATCHES = 2
    """How many of its first batches ORDER is about."""
    DISTINCT = 3
    """Different indices among the first ones of each of them."""
    ORDER = 4
    """A checksum, 63 bits, of the first indices of each of these batches and of their number, in order."""
    LENGTH = 5
    """Batches that its samplers have for a whole pass; -1: not known."""
    EPOCH = 6
    """What a DistributedSampler was told; -1: nothing, or there is none."""
    FLAGS = 7
    STEP = 8
    """Of this attempt, as Field.STEP of the board counts: by then."""
    GROUP = 9
    """62 bits, the same on all ranks whose gradients are averaged with this one's; 0: not known, or there are none."""
    MEMBERS = 10
    """How many ranks these are."""


class Flag(IntEnum):
    """Bits of Record.FLAGS."""

    SHUFFLES = 1
    """A DistributedSampler that is to shuffle, and does so by torch's own code."""
    JOINED = 2
    """The model is trained within torch's join(): ranks may run out of batches before others do."""


def samples_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's samples page inside the run's socket folder."""
    return f"samples-{attempt}-{global_rank}"
