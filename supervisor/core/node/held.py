"""The findings of a judge of GPUs that hold right now: what is news about them, and what is not. Pure."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.core.node.finding import Finding

MAX_HELD = 1024


class Held:
    """Keeps findings by id, each with the response that its judge gives it. Answers what the judge should tell."""

    def __init__(self) -> None:
        self._findings: dict[str, tuple[Finding, str]] = {}

    def hold(self, finding: Finding, news: str = "") -> list[Finding]:
        """It holds: told when it begins, and when its response or `news` (what a person would call a change) differs.

        It keeps the since_s of when it began.
        """
        before = self._findings.get(finding.id)
        if before is None and len(self._findings) >= MAX_HELD:
            return []
        key = f"{finding.response.value} {news}"
        if before is not None:
            finding = msgspec.structs.replace(finding, since_s=before[0].since_s)
        self._findings[finding.id] = (finding, key)
        return [] if before is not None and before[1] == key else [finding]

    def end(self, finding_id: str, now_s: float, summary: str = "") -> list[Finding]:
        """It does not hold any more; nothing where it did not."""
        before = self._findings.pop(finding_id, None)
        if before is None:
            return []
        text = summary or f"Over: {before[0].summary}"
        return [msgspec.structs.replace(before[0], told_s=now_s, is_over=True, summary=text)]

    def get(self, finding_id: str) -> Finding | None:
        """The finding as it is now; None where it does not hold."""
        held = self._findings.get(finding_id)
        return None if held is None else held[0]
