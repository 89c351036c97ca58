"""Which samples a rank trains on, from its samples page: read once a second, while its hooks may be writing it."""

from __future__ import annotations

import os
import struct

from guardrun.hooks.wire import samples_page as page
from guardrun.hooks.wire.samples_page import Flag, Head, Record
from guardrun.supervisor.base.shared_pages import PageFile
from guardrun.supervisor.engine.model.events import SampleOrder

_HEAD = struct.Struct(f"<{page.HEAD_WORDS}q")
_RECORD = struct.Struct(f"<{page.RECORD_WORDS}q")


class SamplesReader:
    """One rank's page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = PageFile(path, page.SIZE_BYTES, page.MAGIC, _HEAD)
        self._found: list[SampleOrder] = []
        self.first_step: int | None = None
        """At which the newest loader's first pass was told, if gradients are averaged with others'; None: none was."""

    def read(self, base: int) -> None:
        """Take in what was written since the last time. base: the step that the attempt began with."""
        head = self._file.head()
        if head is None:
            return
        first, count = self._file.seen, min(head[Head.RECORDS], page.MAX_RECORDS)
        if count <= first:
            return
        data = self._file.read((count - first) * _RECORD.size, 8 * page.HEAD_WORDS + first * _RECORD.size)
        if len(data) != (count - first) * _RECORD.size:
            return
        self._file.seen = count
        found = [_order(words, base) for words in _RECORD.iter_unpack(data) if _is_sound(words)]
        self._found += found
        for order in found:
            if order.group and not order.turn:
                self.first_step = order.step

    def take_orders(self) -> list[SampleOrder]:
        """What is to be reported now."""
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _is_sound(words: tuple[int, ...]) -> bool:
    """Whether a rank can have written it."""
    counts = (Record.LOADER, Record.TURN, Record.DISTINCT, Record.GROUP, Record.MEMBERS)
    return words[Record.BATCHES] > 0 and words[Record.STEP] >= 0 and all(words[place] >= 0 for place in counts)


def _order(words: tuple[int, ...], base: int) -> SampleOrder:
    flags, group = words[Record.FLAGS], words[Record.GROUP]
    return SampleOrder(
        loader=words[Record.LOADER],
        turn=words[Record.TURN],
        batches=words[Record.BATCHES],
        distinct=words[Record.DISTINCT],
        order=f"{words[Record.ORDER]:x}",
        length=words[Record.LENGTH],
        epoch=words[Record.EPOCH],
        shuffles=bool(flags & Flag.SHUFFLES),
        is_joined=bool(flags & Flag.JOINED),
        step=base + words[Record.STEP],
        group=f"{group:x}" if group else "",
        members=words[Record.MEMBERS],
    )
