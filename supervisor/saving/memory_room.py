"""How much of a node's memory the supervisor may fill with copies: so much, and less where the job needs it itself."""

from __future__ import annotations

import os

from guardrun.supervisor.collect.host.memory_limits import Limit, MemoryLimits
from guardrun.supervisor.saving.snapshot_memory import GB, GRANT_LEAVES

KEEP_LEAVES = 15
"""Where less than that part of a limit is free, copies are let go: before those that ranks have asked for are."""
NO_MEMORY = "memory is short"


class MemoryRoom:
    """Of this process, in its control groups and its node. For any thread, one at a time."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._limits: MemoryLimits | None = None

    def why_not(self, held_bytes: int, more_bytes: int) -> str:
        """Why there is no room for so much more; empty: there is."""
        if held_bytes + more_bytes > self._most_bytes:
            return f"[checkpoint] mirror_gb = {self._most_bytes / GB:g} is too little"
        limit = self._nearest()
        return NO_MEMORY if limit is None or limit.room - more_bytes < limit.limit // GRANT_LEAVES else ""

    def is_short(self) -> bool:
        """Whether what is held is to be let go: the job's own memory comes first."""
        limit = self._nearest()
        return limit is not None and limit.room < limit.limit // KEEP_LEAVES

    def _nearest(self) -> Limit | None:
        self._limits = self._limits or MemoryLimits()
        return self._limits.nearest(os.getpid(), {})
