"""The checksums page: a file of shared memory in which a rank's hooks leave sums of the tensors that replicas share.

One file a rank and attempt beside the board, made by the rank at its first check. Aligned 64-bit words: a header and a
ring of records of one size, one for the parameters and one for the optimizer's moments of each check, and one with
names where this rank is to say them. As on the metrics page a record carries its number at both ends of its head.
"""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x67756172_64_3F_01
MAX_RECORDS = 16
"""A check leaves three at most, and a reader comes every second. Of one that is written over nothing is compared."""
MAX_TENSORS = 2048
"""Sums in a record; those of a model with more tensors share them."""
HEAD_WORDS = 8
RECORD_WORDS = 12 + MAX_TENSORS
SIZE_BYTES = 8 * (HEAD_WORDS + RECORD_WORDS * MAX_RECORDS)
NAMES_BYTES = 8 * MAX_TENSORS
"""Compressed."""


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    RECORDS = 2
    """Records written so far; the ring holds the last MAX_RECORDS."""


class Record(IntEnum):
    """Index of a word of a record."""

    HEAD = 0
    SET = 1
    """The same on all ranks that hold the same tensors; 62 bits."""
    REPLICAS = 2
    """How many ranks these are."""
    COUNT = 3
    """Optimizer steps of these tensors, the same on all ranks at the same moment of training."""
    STEP = 4
    """Of this attempt, as Field.STEP of the board counts."""
    KIND = 5
    """Of Kind."""
    LAYOUT = 6
    """A checksum of which tensors these are, and their sizes: only where it is the same may sums be compared."""
    WRITES = 7
    """In-place operations on the parameters since the first check, by torch's own count (Tensor._version)."""
    LENGTH = 8
    """Of the payload: sums, or bytes of names."""
    ECHO = 9
    """1: it repeats a check that was a few steps before."""
    TAIL = 10
    PAYLOAD = 12


class Kind(IntEnum):
    """What a record holds."""

    PARAMETERS = 0
    MOMENTS = 1
    NAMES = 2
    """Lines, compressed by zlib: what the set is, then the parameters in the order of their sums."""


def checksums_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's checksums page inside the run's socket folder."""
    return f"checksums-{attempt}-{global_rank}"
