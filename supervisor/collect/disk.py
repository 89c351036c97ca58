"""Room left on the file systems that a run writes to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

_stuck: dict[str, threading.Thread] = {}
"""Threads that a dead mount still holds: one a folder, not one a question."""


def read_disk_free(folders: Iterable[str], timeout_s: float = 1.0) -> dict[str, int]:
    """Bytes that the user may still write, per folder; 0 where there are bytes but no inodes left.

    A folder that doesn't exist yet is judged by its nearest parent. Left out are those that didn't answer within
    timeout_s, all together (a dead mount), or may not be asked.
    """
    free: dict[str, int] = {}
    for folder in dict.fromkeys(folders):
        held = _stuck.get(folder)
        if held is not None and held.is_alive():
            continue
        thread = threading.Thread(target=_ask, args=(folder, free), name="disk", daemon=True)
        thread.start()
        _stuck[folder] = thread
    deadline = time.monotonic() + timeout_s
    for folder, thread in list(_stuck.items()):
        thread.join(max(0.0, deadline - time.monotonic()))
        if not thread.is_alive():
            _stuck.pop(folder, None)
    return dict(free)


def _ask(folder: str, free: dict[str, int]) -> None:
    try:
        path = os.path.abspath(folder)
        while not os.path.exists(path) and path != "/":
            path = os.path.dirname(path)
        room = os.statvfs(path)
    except (OSError, ValueError):
        return
    has_inodes = room.f_files == 0 or room.f_favail > 0
    free[folder] = room.f_bavail * room.f_frsize if has_inodes else 0
