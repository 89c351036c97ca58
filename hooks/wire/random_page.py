"""The random page: in which a rank's hooks keep its random states as they were after its last two steps.

One file a rank and attempt beside the board, made by the rank where a trainer's own checkpoint holds them. Whichever
rank saves for all reads those of the others, also of one that is dead. A slot counts if its number is the one that is
looked for before and after it was read.
"""

from __future__ import annotations

import os
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


def read_page(path: str, at: int = 0, size: int = SIZE_BYTES) -> bytes:
    """A page of which nobody has written to this part meanwhile; empty where there is none. MAGIC is the reader's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            content = file.read(SIZE_BYTES + 1)
            file.seek(0)
            again = file.read(SIZE_BYTES + 1)
    except OSError:
        return b""
    is_still = content[at : at + size] == again[at : at + size]
    return content if len(content) == SIZE_BYTES and is_still else b""
