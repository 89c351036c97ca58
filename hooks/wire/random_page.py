"""The random page: in which a rank's hooks keep its random states as they were after its last two steps.

One file a rank and attempt beside the board, made by the rank where a trainer's own checkpoint holds them. Whichever
rank saves for all reads those of the others, also of one that is dead. A slot counts if its number is the one that is
looked for before and after it was read.
"""

from __future__ import annotations

import struct

MAGIC = 0x67756172_64_50_01
HEAD_WORDS = 8
SLOTS = 2
MAX_TORCH_BYTES = 8192
"""Torch's is 5,056 bytes long."""
TWISTER = struct.Struct("=625I")
"""A Mersenne twister's key and position, as Python and numpy have it."""
REST = struct.Struct("=qqqqdqd")
"""A slot's number; length of torch's state; whether numpy's is there; whether Python's has a Gaussian number left, and
this; the same of numpy's."""
SLOT_BYTES = 8 * ((REST.size + MAX_TORCH_BYTES + 2 * TWISTER.size + 7) // 8)
SIZE_BYTES = 8 * HEAD_WORDS + SLOTS * SLOT_BYTES


def random_name(attempt: int, global_rank: int) -> str:
    """The page's name within the folder of sockets."""
    return f"random-{attempt}-{global_rank}"
