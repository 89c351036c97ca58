"""What replicas hold, from a rank's checksums page: read once a second, while its hooks may be writing it.

A page has a sum for each tensor; what is reported is folded into GROUPS numbers of 32 bits, whatever the model's size.
A check and its echo fold differently (group_of), so that the two together tell which tensor differs.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence

import msgspec

from guardrun.hooks.wire import checksums_page as page
from guardrun.hooks.wire.checksums_page import Head, Kind, Record
from guardrun.supervisor.base.shared_pages import PageFile
from guardrun.supervisor.engine.model.events import ReplicaCheck
from guardrun.supervisor.engine.observation.tensor_groups import GROUPS, group_of

MAX_PENDING = 16
"""Checks that wait for a report."""
MAX_NAMES_CHARS = 128 * 1024
"""In one report: a node's has to pass to the head in one piece."""
_HEAD = struct.Struct(f"<{page.HEAD_WORDS}q")
_RECORD_BYTES = 8 * page.RECORD_WORDS
_BODY = struct.Struct(f"<{Record.TAIL + 1}q")
_MASK = (1 << 64) - 1


class ChecksumsReader:
    """One rank's page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = PageFile(path, page.SIZE_BYTES, page.MAGIC, _HEAD)
        self._found: list[ReplicaCheck] = []

    def read(self, base: int) -> None:
        """Take in what was written since the last time. base: the step that the attempt began with."""
        head = self._file.head()
        if head is None:
            return
        count = head[Head.RECORDS]
        for number in range(max(self._file.seen, count - page.MAX_RECORDS), count):
            check = self._read(number, base)
            if check is not None:
                self._found.append(check)
        self._file.seen = max(self._file.seen, count)
        del self._found[:-MAX_PENDING]

    def take_checks(self) -> list[ReplicaCheck]:
        """What is to be reported now."""
        found, self._found = self._found, []
        left = MAX_NAMES_CHARS
        for place, check in enumerate(found):
            size = sum(map(len, check.names))
            if size > left:
                found[place] = msgspec.structs.replace(check, names=[])
            left -= min(size, left)
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, number: int, base: int) -> ReplicaCheck | None:
        """One record; None where it is being written over, or holds what no rank writes."""
        at = 8 * page.HEAD_WORDS + number % page.MAX_RECORDS * _RECORD_BYTES
        data = self._file.read(_RECORD_BYTES, at)
        again = self._file.read(_BODY.size, at)
        if len(data) != _RECORD_BYTES or again != data[: _BODY.size]:
            return None
        body = _BODY.unpack_from(data)
        kind, length = body[Record.KIND], body[Record.LENGTH]
        payload = data[8 * Record.PAYLOAD :]
        if not body[Record.HEAD] == body[Record.TAIL] == number + 1 or not 0 < length <= len(payload):
            return None
        digests, names = "", []
        if kind == Kind.NAMES:
            names = unpack_names(payload[:length])
        elif kind in (Kind.PARAMETERS, Kind.MOMENTS) and length <= page.MAX_TENSORS:
            sums = struct.unpack_from(f"<{length}Q", payload)
            digests = fold_sums(sums, is_echo=bool(body[Record.ECHO]))
        else:
            return None
        return ReplicaCheck(
            of=f"{body[Record.SET]:x}",
            kind=kind,
            replicas=body[Record.REPLICAS],
            count=body[Record.COUNT],
            step=base + body[Record.STEP],
            is_echo=bool(body[Record.ECHO]),
            layout=body[Record.LAYOUT],
            writes=body[Record.WRITES],
            tensors=length,
            digests=digests,
            names=names,
        )


def fold_sums(sums: Sequence[int], *, is_echo: bool) -> str:
    """GROUPS numbers of 32 bits, or fewer, in hexadecimal: of one sum a tensor (each 0 to 2**64 - 1)."""
    groups = [0] * min(GROUPS, len(sums))
    for place, number in enumerate(sums):
        group = group_of(place, len(sums), is_echo=is_echo)
        # The finalizer of splitmix64: a bit that differs makes half of all bits differ.
        mixed = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
        groups[group] = (groups[group] * 31 + (mixed ^ (mixed >> 31))) & _MASK
    return struct.pack(f"<{len(groups)}I", *(group >> 32 for group in groups)).hex()


def unpack_names(data: bytes) -> list[str]:
    """Lines that a rank has packed; none where they are no such lines."""
    try:
        text = zlib.decompressobj().decompress(data, MAX_NAMES_CHARS)
    except zlib.error:
        return []
    return text.decode(errors="replace").split("\n")[: page.MAX_TENSORS + 1]
