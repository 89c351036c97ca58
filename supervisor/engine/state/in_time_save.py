"""What is remembered of the save that an attempt's ranks are given time for before they are ended."""

from __future__ import annotations

from typing import Any

import msgspec


class InTimeSave(msgspec.Struct, kw_only=True):
    """Of one attempt; docs/just-in-time.md."""

    request: int = 0
    """Its number; 0: nobody was asked."""
    since_s: float = 0.0
    until_s: float = 0.0
    """It is waited for until then."""
    told: dict[str, Any] = {}
    """What came of it, as evidence; empty: it goes on."""
    is_running: bool = False
    """The job is about to end, and training goes on meanwhile."""
    is_doubtful: bool = False
    """Something may have been written that is not to be resumed from."""

    @property
    def is_pending(self) -> bool:
        """What comes of it is waited for."""
        return bool(self.request) and not self.told
