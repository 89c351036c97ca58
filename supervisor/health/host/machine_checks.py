"""The machine itself: machine checks, lockups, hung tasks, PCIe errors, limits that are nearly reached. Pure.

The contract has no cause for these: what they do to training is an incident of its own (`bus_error`, `io_blocked`,
`node_lost`). They are there for `guardctl node`, with responses of their own for whoever wants such nodes isolated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition, Said
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import Lasting, Moments, clip, number, values_of
from guardrun.supervisor.health.base.readings import Happening, Readout, Value
from guardrun.supervisor.health.base.responses import finding_id, host_finding

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

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
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

        def say() -> Said:
            name, pid = clip(values.get("longest_wait_name", "?")), values.get("longest_wait_pid", "?")
            place = values.get("longest_wait_place")
            where = f" in {clip(place)}" if place else ""
            text = f"Process {pid} ({name}) has been in uninterruptible wait for {longest_s:.0f} s{where}"
            return text, {"pid": pid, "waiting": waiting, "longest_wait_s": longest_s, "place": place}

        return self._waiting.take(subject, (longest_s or 0.0) >= WAIT_S, at_s, now_s, say)

    def _judge_limits(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        where = "" if subject == "processes" else f" in {clip(subject)}"
        found: list[Finding] = []
        for name, condition in self._limits.items():
            used, most = number(values.get(name)), number(values.get(f"{name}_limit"))
            if used is None or not most:
                continue
            text = f"{used:.0f} of {most:.0f} {name.replace('_', ' ')} are in use{where}"
            said: Said = (text, {"used": used, "limit": most})
            found += condition.take(subject, used >= NEAR * most, at_s, now_s, _saying(said))
        return found

    def _end_old(self, now_s: float) -> list[Finding]:
        found: list[Finding] = []
        for finding in self._standing.holding():
            what = finding.id.rsplit("/", 1)[-1]
            moments = next((self._moments[name] for name, kind in KINDS.items() if kind.what == what), None)
            if moments is not None and not moments.count(finding.subject, now_s):
                found += self._standing.end(finding_id(CAUSE, finding.subject, what), now_s)
        return found
