"""What is wrong with a part of a node, for as long as it is: the answer of the judges. Pure.

Told when it begins, when it says something new, and when it ends.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Response(str, Enum):
    """What the policy makes of a finding's cause; the higher wins."""

    NOTE = "note"
    RESTART = "restart"
    """Here, on the same node."""
    ISOLATE = "isolate"
    """The node takes no part in the next attempt, and no new run."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong; told when it begins, when it changes for a person, and when it is over."""

    id: str
    """The same as long as it lasts, and after a restart of who judges: `CAUSE/SUBJECT`, and more where that is not
    enough."""
    cause: str
    """As the contract lists them: `gpu_ecc`, `thermal`, `network`, …; `throttle` for throttling, before anybody knows
    whether training feels it."""
    key: str = ""
    """Finer than the cause, where the policy tells such apart (`disk_full`, `gpu_xid_79`); empty: the cause will do."""
    subject: str
    since_s: float
    """CLOCK_MONOTONIC."""
    told_s: float
    summary: str
    """One sentence for a person, naming node part and figures; without the node's name."""
    evidence: dict[str, Any] = {}
    advice: str = ""
    response: Response = Response.NOTE
    is_over: bool = False


# Open findings ------------------------------------------------------------------------------------------------------
# What a judge has found that is not over: told when it begins, when it says something new, and when it ends.


MAX_STANDING = 512


class Standing:
    """The findings of one judge that last, by id."""

    limit = MAX_STANDING
    keeps_latest = False
    """A finding is kept as it was last so, instead of as it was last told."""

    def __init__(self) -> None:
        self._findings: dict[str, tuple[Finding, str]] = {}

    def holds(self, finding_id: str) -> Finding | None:
        """The finding as it is kept; None where it does not hold."""
        held = self._findings.get(finding_id)
        return held[0] if held is not None else None

    def hold(self, finding: Finding, news: str = "") -> list[Finding]:
        """It is so. Told unless the last time had the same news: a person wants to hear changes, not figures.

        It keeps the time at which it began.
        """
        held = self._findings.get(finding.id)
        if held is None and len(self._findings) >= self.limit:
            return []
        is_news = held is None or held[1] != news or held[0].response is not finding.response
        if held is not None:
            finding = msgspec.structs.replace(finding, since_s=held[0].since_s)
        if is_news or self.keeps_latest:
            self._findings[finding.id] = (finding, news)
        return [finding] if is_news else []

    def end(self, finding_id: str, now_s: float, summary: str = "") -> list[Finding]:
        """It is not so any more; nothing where it was not said to be. summary: what to say instead of what it was."""
        held = self._findings.pop(finding_id, None)
        if held is None:
            return []
        text = summary or f"Over: {held[0].summary}"
        return [msgspec.structs.replace(held[0], told_s=now_s, is_over=True, summary=text)]

    def holding(self) -> list[Finding]:
        """All that hold."""
        return [finding for finding, _ in self._findings.values()]

    def end_gone(self, is_there: set[str], kinds: tuple[str, ...], now_s: float) -> list[Finding]:
        """Of subjects of these kinds (`net:`) that are not there any more, nothing is wrong."""
        gone = [f for f in self.holding() if f.subject.startswith(kinds) and f.subject not in is_there]
        return [over for f in gone for over in self.end(f.id, now_s, f"Over, since it is gone: {f.summary}")]


# Held findings ------------------------------------------------------------------------------------------------------
# The findings of a judge of GPUs that hold right now.


class Held(Standing):
    """Keeps the figures of the last time that it was so: those that are told when it is over."""

    limit = 1024
    keeps_latest = True
