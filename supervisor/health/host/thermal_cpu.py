"""CPUs that run slower because they are too hot. Pure. An incident only if training feels it."""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import LastCounts, Lasting, number, values_of
from guardrun.supervisor.health.base.readings import Readout, Value

CAUSE = "thermal"
SHARE = 0.05
"""Of the time, where the CPU tells for how long it throttled; else that it did in each of the readouts."""
LASTS_S = 45.0
OVER_S = 120.0


class ThermalCpuJudge:
    """`thermal/cpu:PACKAGE`."""

    sensors = frozenset({"cpu"})

    def __init__(self) -> None:
        self._counters = LastCounts()
        self._hot = Condition(
            CAUSE,
            "",
            Standing(),
            Lasting(LASTS_S, OVER_S, readouts=3),
            advice="Look at the node's fans, air flow and inlet temperature.",
        )

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges growth of each package's throttle counter."""
        found: list[Finding] = []
        for subject, values in values_of(readout).items():
            if subject.startswith("cpu:"):
                found += self._judge(subject, values, readout.at_s, now_s)
        self._counters.forget(now_s)
        return found + self._hot.forget(now_s)

    def _judge(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        times = [
            growth
            for name in ("throttle_count", "core_throttle_count")
            if (growth := self._counters.grown(f"{subject}/{name}", values.get(name), at_s)) is not None
        ]
        spent = self._counters.grown(f"{subject}/throttled_s", values.get("throttled_s"), at_s)
        count = sum(growth.by for growth in times)
        if spent is not None and spent.rate <= 1.5:
            is_hot: bool | None = spent.rate >= SHARE
        else:
            is_hot = count > 0 if times else None

        def say() -> tuple[str, dict[str, Value]]:
            package = subject.removeprefix("cpu:")
            evidence: dict[str, Value] = {"times": int(count)}
            text = f"CPU {package} is too hot and slows down"
            now_hz, most_hz = number(values.get("frequency_hz")), number(values.get("frequency_max_hz"))
            if now_hz and most_hz:
                text += f": {now_hz / 1e6:.0f} of {most_hz / 1e6:.0f} MHz"
                evidence |= {"frequency_hz": now_hz, "frequency_max_hz": most_hz}
            if spent is not None:
                evidence["share"] = round(spent.rate, 3)
            return text, evidence

        return self._hot.take(subject, is_hot, at_s, now_s, say)
