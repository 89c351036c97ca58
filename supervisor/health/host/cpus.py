"""CPUs that are not there when they are wanted, or run slower because they are too hot. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding, Standing
from guardrun.supervisor.health.base.persistence import Condition, Growth, LastCounts, Lasting, clip, number, values_of
from guardrun.supervisor.health.base.readings import Readout, Value

# CPU starvation -----------------------------------------------------------------------------------------------------
# CPUs that are not there when they are wanted: stolen, held back by a quota, or wanted by too many.
#
# None of it is an incident unless training feels it.


STARVED_CAUSE = "cpu_starved"
STEAL = 0.1
"""Share of the time in which the CPUs wanted to run."""
THROTTLED = 0.25
"""Share of a quota's periods in which it was used up."""
STALLED = 0.75
"""Share of the time in which some task waited for a CPU (PSI weighs by CPU): a node that is merely busy stays below."""
LASTS_S = 45.0
OVER_S = 60.0


class CpuStarvedJudge:
    """`cpu_starved/cpu/steal`, `cpu_starved/cgroup:PATH/quota`, `cpu_starved/cpu/pressure`."""

    sensors = frozenset({"cpu", "cgroup", "pressure"})

    def __init__(self) -> None:
        self._counters = LastCounts()
        self._standing = Standing()
        self._steal = self._condition("steal", "The host of this virtual machine runs others on its CPUs: move it.")
        self._quota = self._condition("quota", "Raise the CPU limit of the job's control group, or have it start less.")
        self._stalled = self._condition("pressure", "`guardctl node history` and top show who runs beside the job.")

    def _condition(self, what: str, advice: str) -> Condition:
        return Condition(STARVED_CAUSE, what, self._standing, Lasting(LASTS_S, OVER_S, readouts=3), advice=advice)

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges cgroups' quotas, stolen time and CPU pressure; a group that has gone ends its finding."""
        found: list[Finding] = []
        told = values_of(readout)
        for subject, values in told.items():
            if readout.sensor == "cgroup":
                found += self._judge_quota(subject, values, readout.at_s, now_s)
            elif subject == "cpu" and readout.sensor == "cpu":
                found += self._judge_steal(values, readout.at_s, now_s)
            elif subject == "cpu":
                found += self._judge_pressure(values, readout.at_s, now_s)
        if readout.sensor == "cgroup" and not readout.trouble:
            found += self._standing.end_gone(set(told), ("cgroup:",), now_s)
        for condition in (self._steal, self._quota, self._stalled):
            found += condition.forget(now_s)
        self._counters.forget(now_s)
        return found

    def _grown(self, subject: str, name: str, values: dict[str, Value], at_s: float) -> Growth | None:
        return self._counters.grown(f"{subject}/{name}", values.get(name), at_s)

    def _judge_steal(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        stolen = self._grown("cpu", "steal_s", values, at_s)
        busy = self._grown("cpu", "busy_s", values, at_s)
        wanted_s = stolen.by + busy.by if stolen and busy else 0.0
        # A machine that is idle loses nothing by what is stolen.
        share = stolen.by / wanted_s if stolen and wanted_s > 0.1 * stolen.within_s else None

        def describe() -> tuple[str, dict[str, float]]:
            return f"{share or 0:.0%} of the CPUs' time goes to other virtual machines", {"share": round(share or 0, 3)}

        return self._steal.update("cpu", None if share is None else share >= STEAL, at_s, now_s, describe)

    def _judge_quota(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        periods = self._grown(subject, "periods", values, at_s)
        throttled = self._grown(subject, "throttled_periods", values, at_s)
        lost = self._grown(subject, "throttled_s", values, at_s)
        if periods is None or throttled is None or throttled.by > periods.by:
            return self._quota.update(subject, None, at_s, now_s, lambda: ("", {}))
        # Without periods nobody in it ran: its quota holds nobody back.
        share = throttled.by / periods.by if periods.by else 0.0

        def describe() -> tuple[str, dict[str, float]]:
            held_s = lost.rate if lost is not None else 0.0
            group = clip(subject.removeprefix("cgroup:"))
            text = f"The CPU quota of control group {group} is used up in {share:.0%} of its periods"
            return text, {"share": round(share, 3), "throttled_s_per_s": round(held_s, 3)}

        return self._quota.update(subject, share >= THROTTLED, at_s, now_s, describe)

    def _judge_pressure(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        stalled = self._grown("pressure", "stalled_some_s", values, at_s)
        share = stalled.rate if stalled is not None and stalled.rate <= 1.5 else None

        def describe() -> tuple[str, dict[str, float]]:
            text = f"Some task waits for a CPU {min(1.0, share or 0):.0%} of the time"
            return text, {"share": round(share or 0, 3)}

        return self._stalled.update("cpu", None if share is None else share >= STALLED, at_s, now_s, describe)


# Thermal CPU --------------------------------------------------------------------------------------------------------
# CPUs that run slower because they are too hot. Pure. An incident only if training feels it.


THERMAL_CAUSE = "thermal"
SHARE = 0.05
"""Of the time, where the CPU tells for how long it throttled; else that it did in each of the readouts."""
HOT_LASTS_S = 45.0
HOT_OVER_S = 120.0


class ThermalCpuJudge:
    """`thermal/cpu:PACKAGE`."""

    sensors = frozenset({"cpu"})

    def __init__(self) -> None:
        self._counters = LastCounts()
        self._hot = Condition(
            THERMAL_CAUSE,
            "",
            Standing(),
            Lasting(HOT_LASTS_S, HOT_OVER_S, readouts=3),
            advice="Look at the node's fans, air flow and inlet temperature.",
        )

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
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

        def describe() -> tuple[str, dict[str, Value]]:
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

        return self._hot.update(subject, is_hot, at_s, now_s, describe)
