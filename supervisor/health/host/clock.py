"""The wall clock: set while things ran, off, or kept by nobody any more. Pure. Notes: nothing of ours goes by it."""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import Lasting, Moments, number, values_of
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.base.responses import finding_id, host_finding

CAUSE = "clock"
OFF_S = 0.5
"""Between nodes' logs, what came first can no longer be told."""
STEP_OVER_S = 600.0
UNKEPT_S = 900.0
_CLOCK = "clock"
_ADVICE = "Look at chrony or ntpd: `chronyc tracking`, `timedatectl`."


class ClockJudge:
    """`clock/clock/step`, `clock/clock/offset`, `clock/clock/unkept`."""

    sensors = frozenset({"clock"})

    def __init__(self) -> None:
        self._standing = Standing()
        self._steps = Moments(STEP_OVER_S)
        self._was_kept = False
        self._off = Condition(CAUSE, "offset", self._standing, Lasting(45.0, 60.0, readouts=3), advice=_ADVICE)
        self._unkept = Condition(CAUSE, "unkept", self._standing, Lasting(UNKEPT_S, 60.0, readouts=3), advice=_ADVICE)

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges `clock_step`, `offset_s` and `is_synchronized`; a clock that nobody ever kept right is no fault."""
        found: list[Finding] = []
        for happening in readout.happenings:
            if happening.name == "clock_step":
                found += self._stepped(happening.at_s, happening.data.get("step_s"), now_s)
        if not self._steps.count(_CLOCK, now_s):
            found += self._standing.end(finding_id(CAUSE, _CLOCK, "step"), now_s)
        values = values_of(readout).get(_CLOCK, {})
        return found + self._judge(values, readout.at_s, now_s)

    def _stepped(self, at_s: float, step_s: Value | None, now_s: float) -> list[Finding]:
        count = self._steps.add(_CLOCK, at_s, now_s)
        shown = f"by {step_s:+.1f} s" if isinstance(step_s, float | int) and not isinstance(step_s, bool) else ""
        often = f", {count} times in ten minutes" if count > 1 else ""
        return self._standing.hold(
            host_finding(
                CAUSE,
                _CLOCK,
                "step",
                since_s=at_s,
                told_s=now_s,
                summary=f"The wall clock was set {shown}".rstrip() + often,
                evidence={"step_s": step_s, "times": count},
                advice=_ADVICE,
            ),
            news=str(count),
        )

    def _judge(self, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        offset = values.get("offset_s")
        offset_s = number(abs(offset)) if isinstance(offset, float | int) and offset is not True else None
        is_kept = values.get("is_synchronized")
        self._was_kept = self._was_kept or is_kept is True
        found = self._off.take(
            _CLOCK,
            None if offset_s is None else offset_s >= OFF_S,
            at_s,
            now_s,
            lambda: (f"The wall clock is {offset_s:.1f} s off", {"offset_s": offset_s}),
        )
        # One that nobody ever kept (a virtual machine's, a container's) is how this machine is.
        is_lost = is_kept is False and self._was_kept if isinstance(is_kept, bool) else None
        return found + self._unkept.take(
            _CLOCK, is_lost, at_s, now_s, lambda: ("Nothing keeps the wall clock right any more", {})
        )
