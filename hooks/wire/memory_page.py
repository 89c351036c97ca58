"""The memory page: shared memory in which a rank's hooks leave what its device's caching allocator said last.

One file a rank and attempt beside the board, made by the rank at its first reading. Aligned 64-bit words as on the
board, written all at once, four times a minute: HEAD and TAIL are the same number unless a writer is in the middle.
Sizes are bytes.
"""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x67756172_64_40_01
WORDS = 32
SIZE_BYTES = 8 * WORDS
UNKNOWN = -1


class Word(IntEnum):
    """Index of a word."""

    MAGIC = 0
    PID = 1
    HEAD = 2
    """Number of this reading, from 1; 0 while it is written."""
    STEP = 3
    """Of this attempt, as Field.STEP of the board counts."""
    DEVICE = 4
    """The same for ranks that share a device, from its UUID or PCI address; 0 unknown."""
    ALLOCATED = 5
    """In tensors, after an optimizer's step."""
    PEAK = 6
    """The most that it has been since the start, or since the script last reset that."""
    RESERVED = 7
    """What the allocator has got of the device: in tensors, and kept for those to come."""
    INACTIVE = 8
    """Of that: parts of segments of which others are in use, so that they can't be given back."""
    SEGMENTS = 9
    """Of which RESERVED is made up."""
    RETRIES = 10
    """How often so far the device had no memory left, until what was unused was given back."""
    OOMS = 11
    """How often it had none even then."""
    TOTAL = 12
    """Memory of the device; UNKNOWN where that can't be told."""
    FREE = 13
    """Of that nobody's, other processes included; UNKNOWN likewise."""
    CAP = 14
    """The most that the script lets the allocator reserve (set_per_process_memory_fraction); UNKNOWN: no such limit."""
    TAIL = 15


def memory_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's memory page inside the run's socket folder."""
    return f"memory-{attempt}-{global_rank}"
