"""Links that go down and come up again: the second time within five minutes is a verdict. Pure.

Links are told as they change (rtnetlink), and counted by the kernel (carrier_changes, two of which are one flap) and by
InfiniBand ports (link_downed): what the one misses the other has.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import LastCounts, Moments, clip
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.base.responses import finding_id, host_finding

CAUSE = "network"
WITHIN_S = 300.0
STRIKES = 2
"""ByteRobust evicts for a flapping interface after two alerts in five minutes."""
OVER_S = 600.0
_NAMES = {"nic_fault": "has a fault", "transmit_timeout": "does not send any more"}
"""What the kernel's log says of an adapter → in words."""


class Flaps:
    """`network/SUBJECT/flapping`, `network/SUBJECT/adapter`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._counters = LastCounts()
        self._strikes = Moments(WITHIN_S)
        self._last = Moments(OVER_S)
        self._faults = Moments(OVER_S)
        self._used: set[str] = set()
        self._physical: set[str] = set()
        self._told: dict[str, int] = {}
        """Flaps told as they happened since the last count, by subject."""

    def is_used(self, subject: str) -> bool:
        """Whether everything else is reached over it, as far as was ever told."""
        return subject in self._used

    def take(self, readout: Readout, told: dict[str, dict[str, Value]], now_s: float) -> list[Finding]:
        """Judges links that went down, as they are reported and as they are counted. told: values by subject."""
        found: list[Finding] = []
        for subject, values in told.items():
            self._learn(subject, values)
        for happening in readout.happenings:
            if happening.name == "link_down" and happening.data.get("is_enabled") is not False:
                self._told[happening.subject] = self._told.get(happening.subject, 0) + 1
                found += self._strike(happening.subject, 1, happening.at_s, now_s)
            elif happening.name in _NAMES:
                found += self._fault(happening.subject, happening.name, happening.text, happening.at_s, now_s)
        for subject, values in told.items():
            found += self._count(subject, values, readout.at_s, now_s)
        return found + self._end_old(now_s)

    def _learn(self, subject: str, values: dict[str, Value]) -> None:
        if values.get("is_default_route") is True or subject.startswith("ib:"):
            self._used.add(subject)
        if values.get("is_physical") is True:
            self._physical.add(subject)

    def _count(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        """Flaps that nobody told of, by the counters."""
        carrier = self._counters.grown(f"{subject}/carrier", values.get("carrier_changes"), at_s)
        downed = self._counters.grown(f"{subject}/downed", values.get("link_downed"), at_s)
        told = self._told.pop(subject, 0) if carrier is not None else 0
        flaps = int(downed.by) if downed is not None else 0
        if carrier is not None and values.get("is_enabled") is not False:
            flaps += max(0, int(carrier.by) // 2 - told)
        return self._strike(subject, min(flaps, 100), at_s, now_s) if flaps else []

    def _strike(self, subject: str, flaps: int, at_s: float, now_s: float) -> list[Finding]:
        if subject not in self._used and subject not in self._physical:
            return []
        self._last.add(subject, at_s, now_s, flaps)
        count = self._strikes.add(subject, at_s, now_s, flaps)
        if count < STRIKES:
            return []
        name = clip(subject.partition(":")[2])
        is_used = self.is_used(subject)
        return self._standing.hold(
            host_finding(
                CAUSE,
                subject,
                "flapping",
                key="network_flapping" if is_used else "",
                since_s=self._strikes.first_s(subject) or at_s,
                told_s=now_s,
                summary=f"The link of {name} went down {count} times in five minutes",
                evidence={"times": count, "is_used": is_used},
                advice="Its cable, its transceiver, the port of the switch.",
            ),
            news=str(len(str(count))),
        )

    def _fault(self, subject: str, name: str, text: str, at_s: float, now_s: float) -> list[Finding]:
        self._faults.add(subject, at_s, now_s)
        return self._standing.hold(
            host_finding(
                CAUSE,
                subject,
                "adapter",
                since_s=at_s,
                told_s=now_s,
                summary=f"Network adapter {clip(subject.partition(':')[2])} {_NAMES[name]}",
                evidence={"last": text},
                advice="Its firmware and driver; `dmesg` has more.",
            )
        )

    def _end_old(self, now_s: float) -> list[Finding]:
        found: list[Finding] = []
        for finding in self._standing.holding():
            what = finding.id.rsplit("/", 1)[-1]
            moments = {"flapping": self._last, "adapter": self._faults}.get(what)
            if moments is not None and not moments.count(finding.subject, now_s):
                found += self._standing.end(finding_id(CAUSE, finding.subject, what), now_s)
        return found
