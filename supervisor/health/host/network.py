"""Network links: down, going down again and again, losing packets. Pure.

One flap is no verdict, a second within five minutes is. A link that never was up while we watched is nobody's fault;
nor is one that somebody switched off. Interfaces that neither a device nor the default route stands behind (a pod's, a
container's) come and go, and are not judged.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition, Said
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import LastCounts, Lasting, clip, values_of
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.host.link_flaps import Flaps

CAUSE = "network"
DOWN_S = 30.0
ERRORS_A_S = 10.0
ERROR_SHARE = 0.001
DROP_SHARE = 0.01
"""Of packets: a few are dropped everywhere, by rule."""
IB_ERRORS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "link_error_recovery")
IB_ERRORS_A_S = 1.0
"""A sound link at 25 Gb/s a lane has a symbol error in hours (bit error rate of 1e-15 after correction)."""


class NetworkJudge:
    """`network/net:NAME/down`, `…/errors`, `network/ib:DEVICE/PORT/down`, …, and what link_flaps.py finds."""

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

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges interfaces and InfiniBand ports; one that has gone ends its findings, unless it was not its turn."""
        told = values_of(readout)
        found = self._flaps.take(readout, told, now_s)
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
        found = condition.take(
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

        def say() -> Said:
            text = f"{name} has {errors / within_s:.0f} errors and {drops / within_s:.0f} drops a second"
            return text, {"errors": errors, "dropped": drops, "packets": packets, "within_s": round(within_s, 1)}

        return self._errors.take(subject, is_bad or is_losing, at_s, now_s, say)

    def _judge_port(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        state, name = values.get("state"), clip(subject.removeprefix("ib:"))
        found: list[Finding] = []
        if isinstance(state, str):
            if state == "ACTIVE":
                self._were_up.add(subject)
            is_down = state != "ACTIVE" and subject in self._were_up
            found += self._down.take(
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

        def say() -> Said:
            kinds = {kind: growth.by for kind, growth in zip(IB_ERRORS, growths, strict=True) if growth is not None}
            return f"InfiniBand port {name} has {rate:.1f} link errors a second", {**kinds, "rate": round(rate, 2)}

        return found + self._errors.take(subject, rate >= IB_ERRORS_A_S, at_s, now_s, say)
