"""Network links: down, going down again and again, losing packets. Pure.

One flap is no verdict, a second within five minutes is. A link that never was up while we watched is nobody's fault;
nor is one that somebody switched off. Interfaces that neither a device nor the default route stands behind (a pod's, a
container's) come and go, and are not judged.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding, Standing, finding_id, host_finding
from guardrun.supervisor.health.base.persistence import Condition, LastCounts, Lasting, Moments, Said, clip, values_of
from guardrun.supervisor.health.base.readings import Readout, Value

# Link flaps ---------------------------------------------------------------------------------------------------------
# Links that go down and come up again: the second time within five minutes is a verdict.
#
# Links are told as they change (rtnetlink), and counted by the kernel (carrier_changes, two of which are one flap) and
# by InfiniBand ports (link_downed): what the one misses the other has.


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
        self._reported: dict[str, int] = {}
        """Flaps told as they happened since the last count, by subject."""

    def is_used(self, subject: str) -> bool:
        """Whether everything else is reached over it, as far as was ever told."""
        return subject in self._used

    def judge_readout(self, readout: Readout, told: dict[str, dict[str, Value]], now_s: float) -> list[Finding]:
        """Judges links that went down, as they are reported and as they are counted. told: values by subject."""
        found: list[Finding] = []
        for subject, values in told.items():
            self._learn(subject, values)
        for happening in readout.happenings:
            if happening.name == "link_down" and happening.data.get("is_enabled") is not False:
                self._reported[happening.subject] = self._reported.get(happening.subject, 0) + 1
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
        told = self._reported.pop(subject, 0) if carrier is not None else 0
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


# Network ------------------------------------------------------------------------------------------------------------


DOWN_S = 30.0
ERRORS_A_S = 10.0
ERROR_SHARE = 0.001
DROP_SHARE = 0.01
"""Of packets: a few are dropped everywhere, by rule."""
IB_ERRORS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "link_error_recovery")
IB_ERRORS_A_S = 1.0
"""A sound link at 25 Gb/s a lane has a symbol error in hours (bit error rate of 1e-15 after correction)."""


class NetworkJudge:
    """`network/net:NAME/down`, `…/errors`, `network/ib:DEVICE/PORT/down`, …, and what network.py finds."""

    sensors = frozenset({"network", "infiniband", "kernel_log"})

    def __init__(self) -> None:
        self._standing = standing = Standing()
        self._flaps = Flaps(standing)
        self._counters = LastCounts()
        self._were_up: set[str] = set()
        self._down = Condition(
            CAUSE,
            "down",
            standing,
            Lasting(DOWN_S, 10.0),
            key="network_down",
            advice="Its cable, its transceiver, the port of the switch.",
        )
        self._spare_down = Condition(
            CAUSE, "unused", standing, Lasting(DOWN_S, 10.0), advice="Its cable or its switch."
        )
        self._errors = Condition(
            CAUSE,
            "errors",
            standing,
            Lasting(45.0, 120.0, readouts=3),
            key="network_errors",
            advice="Its cable, its transceiver, the port of the switch.",
        )

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges interfaces and InfiniBand ports; one that has gone ends its findings, unless it was not its turn."""
        told = values_of(readout)
        found = self._flaps.judge_readout(readout, told, now_s)
        for subject, values in told.items():
            if subject.startswith("net:"):
                found += self._judge_interface(subject, values, readout.at_s, now_s)
            elif subject.startswith("ib:"):
                found += self._judge_port(subject, values, readout.at_s, now_s)
        if not readout.is_partial and not readout.trouble and readout.sensor in ("network", "infiniband"):
            kinds = ("net:",) if readout.sensor == "network" else ("ib:",)
            self._were_up -= {subject for subject in self._were_up if subject.startswith(kinds) and subject not in told}
            found += self._standing.end_gone(set(told), kinds, now_s)
        for condition in (self._down, self._spare_down, self._errors):
            found += condition.forget(now_s)
        self._counters.forget(now_s)
        return found

    def _judge_interface(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        is_up, is_routed = values.get("is_up"), values.get("is_default_route") is True
        if not isinstance(is_up, bool) or not (is_routed or values.get("is_physical") is True):
            return []
        name = clip(subject.removeprefix("net:"))
        if is_up:
            self._were_up.add(subject)
        is_down = not is_up and subject in self._were_up and values.get("is_enabled") is not False
        # A route goes with its link: what led out when the link was up still counts.
        condition = self._down if self._flaps.is_used(subject) else self._spare_down
        found = condition.update(
            subject, is_down, at_s, now_s, lambda: (f"The link of {name} is down", {"interface": name})
        )
        return found + self._judge_packets(subject, name, values, at_s, now_s)

    def _judge_packets(
        self, subject: str, name: str, values: dict[str, Value], at_s: float, now_s: float
    ) -> list[Finding]:
        grown = {
            kind: self._counters.grown(f"{subject}/{kind}", values.get(kind), at_s)
            for way in ("rx", "tx")
            for kind in (f"{way}_packets", f"{way}_errors", f"{way}_dropped")
        }
        known = [growth for growth in grown.values() if growth is not None]
        if len(known) < len(grown):
            return []
        by = {kind: growth.by for kind, growth in grown.items() if growth is not None}
        within_s = known[0].within_s
        packets = by["rx_packets"] + by["tx_packets"]
        errors, drops = by["rx_errors"] + by["tx_errors"], by["rx_dropped"] + by["tx_dropped"]
        all_of = max(1.0, packets + errors + drops)
        is_bad = errors >= ERRORS_A_S * within_s and errors >= ERROR_SHARE * all_of
        is_losing = drops >= ERRORS_A_S * within_s and drops >= DROP_SHARE * all_of

        def describe() -> Said:
            text = f"{name} has {errors / within_s:.0f} errors and {drops / within_s:.0f} drops a second"
            return text, {"errors": errors, "dropped": drops, "packets": packets, "within_s": round(within_s, 1)}

        return self._errors.update(subject, is_bad or is_losing, at_s, now_s, describe)

    def _judge_port(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        state, name = values.get("state"), clip(subject.removeprefix("ib:"))
        found: list[Finding] = []
        if isinstance(state, str):
            if state == "ACTIVE":
                self._were_up.add(subject)
            is_down = state != "ACTIVE" and subject in self._were_up
            found += self._down.update(
                subject,
                is_down,
                at_s,
                now_s,
                lambda: (
                    f"InfiniBand port {name} is {clip(state)}",
                    {"state": state, "phys": values.get("phys_state")},
                ),
            )
        growths = [self._counters.grown(f"{subject}/{kind}", values.get(kind), at_s) for kind in IB_ERRORS]
        known = [growth for growth in growths if growth is not None]
        if not known:
            return found
        rate = sum(growth.by for growth in known) / known[0].within_s

        def describe() -> Said:
            kinds = {kind: growth.by for kind, growth in zip(IB_ERRORS, growths, strict=True) if growth is not None}
            return f"InfiniBand port {name} has {rate:.1f} link errors a second", {**kinds, "rate": round(rate, 2)}

        return found + self._errors.update(subject, rate >= IB_ERRORS_A_S, at_s, now_s, describe)
