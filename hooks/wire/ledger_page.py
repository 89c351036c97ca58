"""The ledger page: a file of shared memory in which a rank's hooks keep what its data loaders have handed out.

One file a rank and attempt beside the board, made by the rank with its first batch. Aligned 64-bit words: a header, and
for each of LOADERS loaders a ring of RECORDS records, one a batch that the training thread took. A record counts once
its loader's count in the header does; those before it are in the ring until they are written over.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

MAGIC = 0x67756172_64_50_01
LOADERS = 6
RECORDS = 1024
"""Of each loader; a power of two."""
HEAD_WORDS = 16
RECORD_WORDS = 12
SIZE_BYTES = 8 * (HEAD_WORDS + RECORD_WORDS * RECORDS * LOADERS)


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    LOADERS = 2
    """Of which there are records."""
    MISSED = 3
    """Loaders for which there was no room."""
    FIRST = 4
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
    """Of the indices of all these batches, in order (hooks/guards/sample_ledger.add_to)."""
    FIRST = 6
    """Likewise, of the first batch alone."""
    GAPS = 7
    """Batches of this pass, and of this attempt, after which the next was taken without a backward() between, …"""
    TRAINED = 8
    """… and those with one."""
    AT_NS = 9
    """CLOCK_MONOTONIC."""
    FLAGS = 10


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
