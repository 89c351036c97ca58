"""How much memory is in use right now, read some thousand times: of a device's allocator, or of this process.

Neither waits for a device. A descriptor of /proc/self/statm is kept meanwhile: reading it again takes 2 µs, and opening
it 8.
"""

from __future__ import annotations

import os

from guardrun.hooks.patches.device_memory import find_device
from guardrun.hooks.rank.allocator import pick, read_stats
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CAPTURES = int(Field.CAPTURES)


class DeviceMemory:
    """What the allocator of a device has handed out."""

    where = "device"

    def __init__(self, rank: Rank, module: Any, index: int) -> None:
        self._words, self._module, self._index = rank.words, module, index

    def read(self) -> int:
        """Bytes; -1: not known."""
        if self._words[_CAPTURES]:
            return -1
        return pick(read_stats(self._module, self._index) or {}, "allocated_bytes", "all", "current")

    def close(self) -> None:
        """Nothing is held."""


class ResidentMemory:
    """What this process has in memory."""

    where = "host"

    def __init__(self) -> None:
        self._identity = (0, 0)
        try:
            self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._identity = self._look()
        except OSError:
            self._fd = -1

    def read(self) -> int:
        """Bytes; -1: not known."""
        try:
            return int(os.pread(self._fd, 80, 0).split()[1]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):  # a script that has closed all descriptors, and opened others
            return -1

    def close(self) -> None:
        """Let the descriptor go, if it is still ours."""
        fd, at = self._fd, self._identity
        try:
            if fd >= 0 and self._look() == at:
                os.close(fd)
        except OSError:
            pass
        self._fd = -1

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino


def find_memory(torch: Any, rank: Rank, optimizer: Any) -> DeviceMemory | ResidentMemory:
    """The device's that a rank trains on, where its allocator holds some of it. For the thread that trains."""
    kind, index = find_device(torch, optimizer)
    module = getattr(torch, kind, None) if index >= 0 else None
    if module is None or rank.words[_CAPTURES] or not getattr(module, "is_initialized", lambda: True)():
        return ResidentMemory()
    try:
        has_some = pick(read_stats(module, index) or {}, "reserved_bytes", "all", "current") > 0
    except Exception:  # an allocator of the script's own, which does not count
        has_some = False
    return DeviceMemory(rank, module, index) if has_some else ResidentMemory()
