"""What the caching allocator of a rank's device said, from its memory page: read while its hooks may be writing it."""

from __future__ import annotations

import os
import struct

from guardrun.hooks.wire import memory_page as page
from guardrun.hooks.wire.memory_page import Word
from guardrun.supervisor.engine.model.events import DeviceMemory

MAX = 1 << 60
"""No device has so much of anything: whoever writes that is no allocator."""

_PAGE = struct.Struct(f"<{page.WORDS}q")


class DeviceMemoryReader:
    """One rank's page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd = -1
        self._seen = 0
        """Number of the reading that was taken last."""

    def take_report(self) -> DeviceMemory | None:
        """The newest reading; None where it was taken before, or is being written."""
        words = self._words()
        if words is None or words[Word.HEAD] != words[Word.TAIL] or words[Word.HEAD] in (0, self._seen):
            return None
        if not all(page.UNKNOWN <= word < MAX for word in words[Word.STEP : Word.TAIL]):
            return None
        self._seen = words[Word.HEAD]
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _words(self) -> tuple[int, ...] | None:
        """All of them, indexed by Word; None where there is no page."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            data, stat = os.pread(self._fd, _PAGE.size, 0), os.fstat(self._fd)
        except OSError:
            return None
        if stat.st_nlink == 0:  # the rank's Python has begun anew, and made another
            self.close()
            self._seen = 0
            return None
        if len(data) != _PAGE.size or stat.st_size != page.SIZE_BYTES:
            return None
        words = _PAGE.unpack(data)
        return words if words[Word.MAGIC] == page.MAGIC else None
