"""The ledger page: a file of shared memory in which a rank's hooks keep what its data loaders have handed out.

One file a rank and attempt beside the board, made by the rank with its first batch. Aligned 64-bit words: a header, for
each of LOADERS loaders a ring of RECORDS records, one a batch that the training thread took, and a ring of SAVES
records, one a save: a rank that dies right after a save has not told of it. A record counts once the count of its ring
in the header does; those before it are there until they are written over.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

MAGIC = 0x67756172_64_50_01
LOADERS = 6
RECORDS = 1024
"""Of each loader; a power of two."""
HEAD_WORDS = 24
RECORD_WORDS = 12
SAVES = 32
SAVE_WORDS = 8
SAVES_AT = HEAD_WORDS + RECORD_WORDS * RECORDS * LOADERS
SIZE_BYTES = 8 * (SAVES_AT + SAVE_WORDS * SAVES)


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    LOADERS = 2
    """Of which there are records."""
    MISSED = 3
    """Loaders for which there was no room."""
    SAVES = 4
    """Written so far."""
    FIRST = 5
    """From here on two words for each loader: its key (63 bits, the same in each attempt), and how many records of it
    were written so far."""


class Record(IntEnum):
    """Index of a word of a record: how it stood when a batch was taken, that batch included."""

    STEP = 0
    """Of this attempt, the one under way: one more than Field.STEP of the board."""
    PASS = 1
    """Which pass over a loader of this rank: from 1, all loaders together."""
    EPOCH = 2
    """What the sampler was told; -1: nothing, or there is none."""
    BATCHES = 3
    """Of this pass. Those that were left out because they had been trained on before count, too."""
    SAMPLES = 4
    DIGEST = 5
    """Of the indices of all these batches, in order (hooks/data/sample_ledger.add_to)."""
    FIRST = 6
    """Likewise, of the first batch alone."""
    GAPS = 7
    """Batches of this pass, and of this attempt, after which the next was taken without a backward() between, …"""
    TRAINED = 8
    """… and those with one."""
    AT_NS = 9
    """CLOCK_MONOTONIC, of the pass's end; 0: it has not ended."""
    FLAGS = 10


class SaveRecord(IntEnum):
    """Index of a word of a save's record."""

    OWN_STEPS = 0
    """Steps of this attempt that it holds, as Field.STEP of the board counts."""
    STEP = 1
    """With those before it."""
    BEGAN_NS = 2
    """CLOCK_MONOTONIC."""
    SIZE = 3
    MTIME_NS = 4
    """Of the file that was written, or of the one that completes a folder."""


class Flag(IntFlag):
    """Bits of Record.FLAGS."""

    ENDED = 1
    """The pass has come to its end. Such a record is of no batch: all else is as in the one before."""
    UNNAMED = 2
    """What the sampler hands out tells batches apart no more: no whole numbers, or batches come in any order."""
    FRAMEWORK = 4
    """It is iterated over by an installed package."""
    STATEFUL = 8
    """The loader, or a sampler of it, has a state of its own that a script may load."""
    APART = 16
    """One pass over it is told from the next: by its epoch, or by its order."""


def consumed_name(attempt: int) -> str:
    """The file there that holds what an attempt's ranks had been handed out before its checkpoint was written."""
    return f"consumed-{attempt}.json"


def ledger_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's ledger page inside the run's socket folder."""
    return f"ledger-{attempt}-{global_rank}"
