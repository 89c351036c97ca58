"""The machine itself: machine checks, lockups, hung tasks, its wall clock, sensors that are stuck. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Standing, finding_id, host_finding
from guardrun.supervisor.health.base.persistence import Condition, Lasting, Moments, Said, clip, number, values_of
from guardrun.supervisor.health.base.readings import Happening, Readout, Value

# Machine checks -----------------------------------------------------------------------------------------------------
# The machine itself: machine checks, lockups, hung tasks, PCIe errors, limits that are nearly reached.
#
# The contract has no cause for these: what they do to training is an incident of its own (`bus_error`, `io_blocked`,
# `node_lost`). They are there for `guardctl node`, with responses of their own for whoever wants such nodes isolated.


CAUSE = "machine"
NEAR = 0.95
WAIT_S = 120.0
LAST_S = 3600.0


class _Kind(NamedTuple):
    what: str
    key: str
    text: str
    times: int
    """Within an hour, from which it is found."""
    advice: str


_REPLACE = "Its firmware's log (`ipmitool sel list`) names the part."
_KERNEL = "`dmesg` has the stack; a driver, or the hardware below it."
KINDS = {
    "mce": _Kind("machine_check", "machine_check", "has had a machine check that was not corrected", 1, _REPLACE),
    "mce corrected": _Kind("corrected", "", "corrects machine checks again and again", 20, _REPLACE),
    "memory_failure": _Kind("memory_failure", "memory_failure", "has lost a page of memory to an error", 1, _REPLACE),
    "pcie_error": _Kind("pcie", "machine_check", "has had a PCIe error that was not corrected", 1, _KERNEL),
    "pcie_error corrected": _Kind("pcie_corrected", "", "corrects PCIe errors again and again", 100, _KERNEL),
    "lockup": _Kind("lockup", "lockup", "has had a CPU locked up in the kernel", 1, _KERNEL),
    "rcu_stall": _Kind("rcu_stall", "lockup", "has had a CPU stall in the kernel", 1, _KERNEL),
    "hung_task": _Kind("hung_task", "lockup", "has a task that hangs in the kernel", 1, _KERNEL),
    "oops": _Kind("oops", "lockup", "has had an error in the kernel", 1, _KERNEL),
}


def _saying(said: Said) -> Callable[[], Said]:
    return lambda: said


class MachineJudge:
    """`machine/SUBJECT/machine_check` and the like, `machine/processes/waiting`, `…/threads`, `…/open_files`."""

    sensors = frozenset({"kernel_log", "processes", "cgroup"})

    def __init__(self) -> None:
        self._standing = standing = Standing()
        self._moments = {name: Moments(LAST_S) for name in KINDS}
        self._waiting = Condition(
            CAUSE,
            "waiting",
            standing,
            Lasting(0.0, 0.0),
            advice="What it waits for: a disk, a mount, a driver; nothing ends it before that answers.",
        )
        self._limits = {
            name: Condition(CAUSE, name, standing, Lasting(25.0, 25.0), advice="Raise the limit, or find who leaks.")
            for name in ("threads", "open_files")
        }

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges the kernel log's happenings by KINDS, tasks in uninterruptible wait, and limits nearly reached."""
        found: list[Finding] = []
        for happening in readout.happenings:
            found += self._happened(happening, now_s)
        told = values_of(readout)
        for subject, values in told.items():
            if readout.sensor == "processes":
                found += self._judge_waiting(subject, values, readout.at_s, now_s)
            found += self._judge_limits(subject, values, readout.at_s, now_s)
        if readout.sensor == "cgroup" and not readout.trouble:
            found += self._standing.end_gone(set(told), ("cgroup:",), now_s)
        return found + self._end_old(now_s)

    def _happened(self, happening: Happening, now_s: float) -> list[Finding]:
        name = f"{happening.name} corrected" if happening.data.get("is_corrected") is True else happening.name
        kind = KINDS.get(name)
        if kind is None:
            return []
        moments = self._moments[name]
        count = moments.add(happening.subject, happening.at_s, now_s)
        if count < kind.times:
            return []
        subject = clip(happening.subject)
        often = f" ({count} times in an hour)" if count > 1 else ""
        return self._standing.hold(
            host_finding(
                CAUSE,
                happening.subject,
                kind.what,
                key=kind.key,
                since_s=moments.first_s(happening.subject) or happening.at_s,
                told_s=now_s,
                summary=f"The machine ({subject}) {kind.text}{often}: {clip(happening.text, 120)}",
                evidence={"times": count, "last": happening.text, **happening.data},
                advice=kind.advice,
            ),
            news=str(len(str(count))),
        )

    def _judge_waiting(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        waiting, longest_s = number(values.get("waiting")), number(values.get("longest_wait_s"))
        if waiting is None:
            return []

        def describe() -> Said:
            name, pid = clip(values.get("longest_wait_name", "?")), values.get("longest_wait_pid", "?")
            place = values.get("longest_wait_place")
            where = f" in {clip(place)}" if place else ""
            text = f"Process {pid} ({name}) has been in uninterruptible wait for {longest_s:.0f} s{where}"
            return text, {"pid": pid, "waiting": waiting, "longest_wait_s": longest_s, "place": place}

        return self._waiting.update(subject, (longest_s or 0.0) >= WAIT_S, at_s, now_s, describe)

    def _judge_limits(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        where = "" if subject == "processes" else f" in {clip(subject)}"
        found: list[Finding] = []
        for name, condition in self._limits.items():
            used, most = number(values.get(name)), number(values.get(f"{name}_limit"))
            if used is None or not most:
                continue
            text = f"{used:.0f} of {most:.0f} {name.replace('_', ' ')} are in use{where}"
            said: Said = (text, {"used": used, "limit": most})
            found += condition.update(subject, used >= NEAR * most, at_s, now_s, _saying(said))
        return found

    def _end_old(self, now_s: float) -> list[Finding]:
        found: list[Finding] = []
        for finding in self._standing.holding():
            what = finding.id.rsplit("/", 1)[-1]
            moments = next((self._moments[name] for name, kind in KINDS.items() if kind.what == what), None)
            if moments is not None and not moments.count(finding.subject, now_s):
                found += self._standing.end(finding_id(CAUSE, finding.subject, what), now_s)
        return found


# Clock --------------------------------------------------------------------------------------------------------------
# The wall clock: set while things ran, off, or kept by nobody any more. Pure. Notes: nothing of ours goes by it.


CLOCK_CAUSE = "clock"
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
        self._off = Condition(CLOCK_CAUSE, "offset", self._standing, Lasting(45.0, 60.0, readouts=3), advice=_ADVICE)
        self._unkept = Condition(
            CLOCK_CAUSE, "unkept", self._standing, Lasting(UNKEPT_S, 60.0, readouts=3), advice=_ADVICE
        )

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges `clock_step`, `offset_s` and `is_synchronized`; a clock that nobody ever kept right is no fault."""
        found: list[Finding] = []
        for happening in readout.happenings:
            if happening.name == "clock_step":
                found += self._stepped(happening.at_s, happening.data.get("step_s"), now_s)
        if not self._steps.count(_CLOCK, now_s):
            found += self._standing.end(finding_id(CLOCK_CAUSE, _CLOCK, "step"), now_s)
        values = values_of(readout).get(_CLOCK, {})
        return found + self._judge(values, readout.at_s, now_s)

    def _stepped(self, at_s: float, step_s: Value | None, now_s: float) -> list[Finding]:
        count = self._steps.add(_CLOCK, at_s, now_s)
        shown = f"by {step_s:+.1f} s" if isinstance(step_s, float | int) and not isinstance(step_s, bool) else ""
        often = f", {count} times in ten minutes" if count > 1 else ""
        return self._standing.hold(
            host_finding(
                CLOCK_CAUSE,
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
        found = self._off.update(
            _CLOCK,
            None if offset_s is None else offset_s >= OFF_S,
            at_s,
            now_s,
            lambda: (f"The wall clock is {offset_s:.1f} s off", {"offset_s": offset_s}),
        )
        # One that nobody ever kept (a virtual machine's, a container's) is how this machine is.
        is_lost = is_kept is False and self._was_kept if isinstance(is_kept, bool) else None
        return found + self._unkept.update(
            _CLOCK, is_lost, at_s, now_s, lambda: ("Nothing keeps the wall clock right any more", {})
        )


# Silent sensors -----------------------------------------------------------------------------------------------------
# A sensor whose call does not return: what it reads is stuck in the kernel or in a driver.
#
# NVML's silence is gpu_inventory.py's.


SILENT_CAUSE = "sensor"
NOT_OURS = "gpu"


class UnresponsiveSensorJudge:
    """`sensor/sensor:NAME`."""

    sensors: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._standing = Standing()

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """One finding a sensor for as long as its call does not return; NVML's silence is left to LostJudge."""
        if readout.sensor == NOT_OURS:
            return []
        subject = f"sensor:{readout.sensor}"
        if not readout.is_silent:
            return self._standing.end(
                finding_id(SILENT_CAUSE, subject), now_s, f"Sensor {readout.sensor} answers again"
            )
        return self._standing.hold(
            host_finding(
                SILENT_CAUSE,
                subject,
                "",
                since_s=readout.at_s,
                told_s=now_s,
                summary=f"Sensor {readout.sensor} does not answer: {readout.trouble}",
                evidence={"trouble": readout.trouble},
                advice="What it reads is stuck in the kernel or in a driver; `dmesg` may say why.",
            )
        )
