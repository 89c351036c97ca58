"""Writes a rank's checksums page."""

from __future__ import annotations

import os
import struct
import zlib

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.checksums_page import (
    HEAD_WORDS,
    MAGIC,
    MAX_RECORDS,
    MAX_TENSORS,
    NAMES_BYTES,
    RECORD_WORDS,
    SIZE_BYTES,
    Head,
    Kind,
    Record,
    checksums_name,
)

_MASK = (1 << 64) - 1


class ChecksumsPage:
    """Of one rank. Raises OSError where it cannot be made."""

    def __init__(self, rank: Rank) -> None:
        path = os.path.join(rank.sockets, checksums_name(rank.attempt, rank.global_rank))
        self._page = SharedPage(path, SIZE_BYTES, MAGIC, rank.pid)

    def put_sums(
        self, head: tuple[int, int, int, int], more: tuple[int, bool], kind: Kind, layout: int, sums: list[int]
    ) -> None:
        """Write sums (0 to 2**64 - 1), one a tensor. head: SET to STEP of the record; more: WRITES and ECHO."""
        folded = fold(sums)
        writes, is_echo = more
        self._put((*head, kind, layout, writes, len(folded), is_echo), struct.pack(f"<{len(folded)}Q", *folded))

    def put_names(self, head: tuple[int, int, int, int], more: tuple[int, bool], names: bytes) -> None:
        """Write names, as pack_names has them."""
        writes, is_echo = more
        self._put((*head, Kind.NAMES, 0, writes, len(names), is_echo), names)

    def _put(self, body: tuple[int, ...], payload: bytes) -> None:
        words, view = self._page.words, self._page.bytes
        count = words[Head.RECORDS]
        at = HEAD_WORDS + count % MAX_RECORDS * RECORD_WORDS
        words[at + Record.HEAD] = words[at + Record.TAIL] = 0
        struct.pack_into("<9q", view, 8 * (at + Record.SET), *body)
        begin = 8 * (at + Record.PAYLOAD)
        view[begin : begin + len(payload)] = payload
        words[at + Record.TAIL] = words[at + Record.HEAD] = count + 1
        words[Head.RECORDS] = count + 1

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        self._page.close()


def fold(sums: list[int]) -> list[int]:
    """At most MAX_TENSORS sums (0 to 2**64 - 1): of more tensors several share one, each with a factor of its own."""
    folded = sums[:MAX_TENSORS]
    for place in range(MAX_TENSORS, len(sums)):
        slot = place % MAX_TENSORS
        folded[slot] = (folded[slot] + sums[place] * (2 * (place // MAX_TENSORS) + 1)) & _MASK
    return folded


def pack_names(lines: list[str]) -> bytes:
    """Names for the page; of very many, the first ones."""
    lines = lines[: MAX_TENSORS + 1]
    while len(packed := zlib.compress("\n".join(lines).encode(errors="replace"))) > NAMES_BYTES:
        lines = lines[: len(lines) // 2]
    return packed
