"""CPUs that are not there when they are wanted: stolen, held back by a quota, or wanted by too many. Pure.

None of it is an incident unless training feels it.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import Growth, LastCounts, Lasting, clip, values_of
from guardrun.supervisor.health.base.readings import Readout, Value

CAUSE = "cpu_starved"
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
        return Condition(CAUSE, what, self._standing, Lasting(LASTS_S, OVER_S, readouts=3), advice=advice)

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
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

        def say() -> tuple[str, dict[str, float]]:
            return f"{share or 0:.0%} of the CPUs' time goes to other virtual machines", {"share": round(share or 0, 3)}

        return self._steal.take("cpu", None if share is None else share >= STEAL, at_s, now_s, say)

    def _judge_quota(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        periods = self._grown(subject, "periods", values, at_s)
        throttled = self._grown(subject, "throttled_periods", values, at_s)
        lost = self._grown(subject, "throttled_s", values, at_s)
        if periods is None or throttled is None or throttled.by > periods.by:
            return self._quota.take(subject, None, at_s, now_s, lambda: ("", {}))
        # Without periods nobody in it ran: its quota holds nobody back.
        share = throttled.by / periods.by if periods.by else 0.0

        def say() -> tuple[str, dict[str, float]]:
            held_s = lost.rate if lost is not None else 0.0
            group = clip(subject.removeprefix("cgroup:"))
            text = f"The CPU quota of control group {group} is used up in {share:.0%} of its periods"
            return text, {"share": round(share, 3), "throttled_s_per_s": round(held_s, 3)}

        return self._quota.take(subject, share >= THROTTLED, at_s, now_s, say)

    def _judge_pressure(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        stalled = self._grown("pressure", "stalled_some_s", values, at_s)
        share = stalled.rate if stalled is not None and stalled.rate <= 1.5 else None

        def say() -> tuple[str, dict[str, float]]:
            text = f"Some task waits for a CPU {min(1.0, share or 0):.0%} of the time"
            return text, {"share": round(share or 0, 3)}

        return self._stalled.take("cpu", None if share is None else share >= STALLED, at_s, now_s, say)
