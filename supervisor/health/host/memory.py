"""Memory that is nearly gone, and processes that the kernel killed for want of it. Pure.

`memory` is no cause of incidents: a rank that is killed so is one (`host_oom`), by itself.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.health.base.findings import Finding, Standing, finding_id, host_finding
from guardrun.supervisor.health.base.persistence import Condition, LastCounts, Lasting, Moments, clip, number, values_of
from guardrun.supervisor.health.base.readings import Happening, Readout, Value

CAUSE = "memory"
LOW = 0.02
STALLED = 0.2
"""Share of the time in which all tasks waited for memory (PSI, full): next to nothing on a node that is well."""
LASTS_S = 25.0
OVER_S = 60.0
KILLS_OVER_S = 600.0
"""A kill is told of for so long."""
_GIB = 1 << 30
_MEMORY = "memory"


class MemoryJudge:
    """`memory/memory/low`, `memory/memory/pressure`, `memory/memory/oom_kills`."""

    sensors = frozenset({"memory", "pressure", "kernel_log"})

    def __init__(self) -> None:
        self._counters = LastCounts()
        self._standing = Standing()
        self._kills = Moments(KILLS_OVER_S)
        self._named: list[dict[str, Any]] = []
        self._low = Condition(
            CAUSE,
            "low",
            self._standing,
            Lasting(LASTS_S, OVER_S, readouts=3),
            advice="Fewer data workers, or smaller batches in them; pinned and shared memory count as well.",
        )

        self._stalled = Condition(
            CAUSE,
            "pressure",
            self._standing,
            Lasting(LASTS_S, OVER_S, readouts=3),
            advice="What runs here needs more than there is: caches are thrown away and read again, or it swaps.",
        )

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges available memory, memory pressure, and OOM kills, reported or only counted."""
        found: list[Finding] = []
        for happening in readout.happenings:
            if happening.name == "oom_kill":
                found += self._killed(happening, now_s)
        for subject, values in values_of(readout).items():
            if subject == _MEMORY and readout.sensor == "memory":
                found += self._judge_low(values, readout.at_s, now_s)
                found += self._judge_count(values, readout.at_s, now_s)
            elif subject == _MEMORY:
                found += self._judge_pressure(values, readout.at_s, now_s)
        if not self._kills.count(_MEMORY, now_s):
            self._named.clear()
            found += self._standing.end(finding_id(CAUSE, _MEMORY, "oom_kills"), now_s)
        return found

    def _judge_low(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        free, total = number(values.get("available_bytes")), number(values.get("total_bytes"))
        is_low = free <= LOW * total if free is not None and total else None

        def describe() -> tuple[str, dict[str, Value]]:
            text = f"{(free or 0) / _GIB:.1f} of {(total or 0) / _GIB:.0f} GiB of memory are left"
            return text, {"available_bytes": free or 0, "total_bytes": total or 0}

        return self._low.update(_MEMORY, is_low, at_s, now_s, describe)

    def _judge_pressure(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        stalled = self._counters.grown("stalled", values.get("stalled_full_s"), at_s)
        share = stalled.rate if stalled is not None and stalled.rate <= 1.5 else None
        return self._stalled.update(
            _MEMORY,
            None if share is None else share >= STALLED,
            at_s,
            now_s,
            lambda: (f"All tasks wait for memory {share or 0:.0%} of the time", {"share": round(share or 0, 3)}),
        )

    def _judge_count(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        """Kills that the kernel's log did not name, where it may not be read."""
        growth = self._counters.grown("oom_kills", values.get("oom_kills"), at_s)
        if growth is None or not growth.by:
            return []
        named = sum(1 for kill in self._named if kill["at_s"] >= at_s - growth.within_s - 1)
        return self._report_kills(max(0, int(growth.by) - named), at_s, now_s)

    def _killed(self, happening: Happening, now_s: float) -> list[Finding]:
        self._named = [*self._named, {"at_s": happening.at_s, **happening.data}][-16:]
        return self._report_kills(1, happening.at_s, now_s)

    def _report_kills(self, kills: int, at_s: float, now_s: float) -> list[Finding]:
        if not kills:
            return []
        count = self._kills.add(_MEMORY, at_s, now_s, kills)
        last = self._named[-1] if self._named else {}
        who = f", last {clip(last.get('task', '?'))} (process {last.get('pid', '?')})" if last else ""
        where = f" in control group {clip(last['cgroup'])}" if last.get("cgroup") else ""
        times = "a process" if count == 1 else f"{count} processes"
        return self._standing.hold(
            host_finding(
                CAUSE,
                _MEMORY,
                "oom_kills",
                since_s=at_s,
                told_s=now_s,
                summary=f"The kernel has killed {times} for want of memory{who}{where}",
                evidence={"kills": count, "last": list(self._named)},
                advice="The limit of the control group, or the machine's memory, was reached.",
            ),
            news=f"{count} {last.get('pid')}",
        )
