"""What the caching allocator of a rank's device said, from its memory page: read while its hooks may be writing it."""

from __future__ import annotations

import os
import struct

from guardrun.hooks.wire import memory_page as page
from guardrun.hooks.wire.memory_page import Word
from guardrun.supervisor.base.shared_pages import PageFile
from guardrun.supervisor.engine.model.events import DeviceMemory

MAX = 1 << 60
"""No device has so much of anything: whoever writes that is no allocator."""

_PAGE = struct.Struct(f"<{page.WORDS}q")


class DeviceMemoryReader:
    """One rank's page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = PageFile(path, page.SIZE_BYTES, page.MAGIC, _PAGE)

    def take_report(self) -> DeviceMemory | None:
        """The newest reading; None where it was taken before, or is being written."""
        words = self._file.head()
        if words is None or words[Word.HEAD] != words[Word.TAIL] or words[Word.HEAD] in (0, self._file.seen):
            return None
        if not all(page.UNKNOWN <= word < MAX for word in words[Word.STEP : Word.TAIL]):
            return None
        self._file.seen = words[Word.HEAD]
        reserved, free, cap = words[Word.RESERVED], words[Word.FREE], words[Word.CAP]
        total = max(0, words[Word.TOTAL])
        limit = reserved + free if free != page.UNKNOWN else total
        return DeviceMemory(
            allocated=words[Word.ALLOCATED],
            peak=words[Word.PEAK],
            reserved=reserved,
            inactive=words[Word.INACTIVE],
            segments=words[Word.SEGMENTS],
            retries=words[Word.RETRIES],
            ooms=words[Word.OOMS],
            limit=min(limit, cap) if cap != page.UNKNOWN else limit,
            total=total,
            device=words[Word.DEVICE],
        )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
