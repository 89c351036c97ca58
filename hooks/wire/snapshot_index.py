"""What a rank says of the copies of its state that it keeps in memory: one page of its index for each of two slots.

The index and the slots are anonymous memory files of the rank's, which the supervisor opens as well; the rank's board
has the index's descriptor. A record is written once its slot is whole, and wiped before the slot is written over. It
lies within one page and has a checksum of its own: whoever dies in the middle leaves no record, or the whole of it.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

PAGE_BYTES = 4096
SLOTS = 2
SIZE_BYTES = (1 + SLOTS) * PAGE_BYTES
MAGIC = 0x6775617264_53_01  # "guard", S, layout 1
MAX_PATH_BYTES = 3900
NAME = "guardrun-snapshot"
"""Of the memory files, as /proc/PID/fd shows them."""

TOPIC = "snapshots"
"""Of what a rank notes about them."""

HOLDS = 1
"""The slot has a state; else this rank has said that it keeps none of this step."""
SHARDED = 2
"""Its path names the rank: each rank's is a part of the whole."""

_HEADER = struct.Struct("<Q2q")
_CHECK = struct.Struct("<QI")
_FIELDS = struct.Struct("<7qIH")


class Record(NamedTuple):
    """One copy."""

    generation: int
    """Counts this rank's copies, from 1."""
    at: int
    """Steps of this attempt, or calls where no step is counted: equal on all ranks for copies that belong together."""
    is_counted: bool
    """These are steps."""
    step: int
    """Steps done, those before the resumed checkpoint included."""
    size_bytes: int
    written_ns: int
    """CLOCK_MONOTONIC."""
    flags: int
    crc: int
    """CRC-32 of the slot's bytes."""
    path: str
    """Where the script would have saved it; absolute."""

    @property
    def holds(self) -> bool:
        """Whether there is a state."""
        return bool(self.flags & HOLDS)

    @property
    def is_sharded(self) -> bool:
        """Whether it is a part of the whole."""
        return bool(self.flags & SHARDED)


def pack_header(slots: tuple[int, int]) -> bytes:
    """The index's first page: the slots' descriptors in the rank."""
    return _HEADER.pack(MAGIC, *slots)


def parse_header(page: bytes) -> tuple[int, int] | None:
    """The slots' descriptors in the rank; None: it is no index."""
    if len(page) < _HEADER.size:
        return None
    magic, first, second = _HEADER.unpack_from(page)
    return (first, second) if magic == MAGIC and min(first, second) >= 0 else None


def pack_record(record: Record) -> bytes:
    """A record's page, as far as it is written. Raises ValueError where the path is too long."""
    path = os.fsencode(record.path)
    if len(path) > MAX_PATH_BYTES:
        raise ValueError(f"its path has more than {MAX_PATH_BYTES} bytes")
    numbers = (record.generation, record.at, int(record.is_counted), record.step, record.size_bytes, record.written_ns)
    body = _FIELDS.pack(*numbers, record.flags, record.crc, len(path)) + path
    return _CHECK.pack(MAGIC, zlib.crc32(body)) + body


def parse_record(page: bytes) -> Record | None:
    """None where nothing whole is written."""
    if len(page) < _CHECK.size + _FIELDS.size:
        return None
    magic, check = _CHECK.unpack_from(page)
    *numbers, crc, length = _FIELDS.unpack_from(page, _CHECK.size)
    generation, at, is_counted, step, size_bytes, written_ns, flags = numbers
    end = _CHECK.size + _FIELDS.size + length
    if magic != MAGIC or length > MAX_PATH_BYTES or zlib.crc32(page[_CHECK.size : end]) != check or size_bytes < 0:
        return None
    path = os.fsdecode(page[end - length : end])
    return Record(generation, at, bool(is_counted), step, size_bytes, written_ns, flags, crc, path)


def sum_of(record: Record) -> int:
    """What is compared of what two ranks named; never 0."""
    path = os.fsencode(record.path)
    return zlib.crc32(path) | len(path) << 32 | record.is_sharded << 48 | 1 << 49


def record_offset(slot: int) -> int:
    """Where in the index a slot's record lies."""
    return (1 + slot) * PAGE_BYTES
