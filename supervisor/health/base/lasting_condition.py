"""One thing that can be wrong with a part of the host: it must last, and then it is found until it is over. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import Lasting
from guardrun.supervisor.health.base.responses import finding_id, host_finding

Said = tuple[str, dict[str, Any]]
"""A summary and its evidence."""


class Condition:
    """`CAUSE/SUBJECT/WHAT`, for all subjects."""

    def __init__(
        self, cause: str, what: str, standing: Standing, lasting: Lasting, *, key: str = "", advice: str = ""
    ) -> None:
        self._cause, self._what, self._key, self._advice = cause, what, key, advice
        self._standing, self._lasting = standing, lasting

    def take(
        self, subject: str, is_so: bool | None, at_s: float, now_s: float, say: Callable[[], Said]
    ) -> list[Finding]:
        """What a readout at that time changes; None: it could not be told. say: asked only where it is to be told."""
        name = finding_id(self._cause, subject, self._what)
        if not self._lasting.take(name, is_so, at_s):
            return self._standing.end(name, now_s)
        if not is_so:
            return []
        summary, evidence = say()
        finding = host_finding(
            self._cause,
            subject,
            self._what,
            key=self._key,
            since_s=self._lasting.since_s(name),
            told_s=now_s,
            summary=summary,
            evidence=evidence,
            advice=self._advice,
        )
        return self._standing.hold(finding)

    def forget(self, now_s: float) -> list[Finding]:
        """What nobody has told of for long is over."""
        return [over for name in self._lasting.forget(now_s) for over in self._standing.end(name, now_s)]
