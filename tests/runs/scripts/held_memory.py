"""For ranks that keep copies in memory and are to fall: whether guardrun has that memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from guardrun.hooks.rank.rank import active as hooked
from guardrun.hooks.wire.board import Field

HOLD_S = 60.0


def wait_until_held() -> None:
    """What was kept before guardrun has opened this rank's memory, and given it room, is lost with the rank.

    At once where this rank keeps nothing, and says nothing of it.
    """
    until_s = time.monotonic() + HOLD_S
    while not is_held() and time.monotonic() < until_s:
        time.sleep(0.01)


def is_held() -> bool:
    assert hooked is not None
    words = hooked.words
    if not words[Field.SNAPSHOT_INDEX]:
        return True
    if words[Field.SNAPSHOT_GRANTED] < words[Field.SNAPSHOT_WANTED]:
        return False
    mine, launcher = os.fstat(words[Field.SNAPSHOT_INDEX] - 1), Path(f"/proc/{os.getppid()}")
    others = {pid for path in launcher.glob("task/*/children") for pid in path.read_text().split()} - {str(os.getpid())}
    return any(is_same(fd, mine) for pid in others for fd in Path(f"/proc/{pid}").glob("fd/*"))


def is_same(path: Path, mine: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), mine)
    except OSError:  # closed meanwhile
        return False
