"""Disks, and the file systems on them and elsewhere: full, read-only, failing, stuck, silent. Pure.

A disk that is kept full on purpose (a data set's) is nobody's fault: a file system is found full where it became so
while we watched, or where the system itself writes to. A mount that turned read-only may be somebody's wish: it is a
fault where the kernel's log says that it was an error.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.lasting_condition import Condition, Said
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import LastCounts, Lasting, clip, number, values_of
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.host.disk_errors import DiskErrors

CAUSE = "disk"
FULL_BYTES = 256 << 20
"""Nothing that trains can do with less; or 1 % of a small one."""
FULL_SHARE = 0.01
SYSTEMS = frozenset(("/", "/tmp", "/var", "/var/tmp", "/var/log", "/dev/shm", "/run", "/home", "/scratch", "/local"))
"""Where a full file system is a fault however it came about."""
STUCK_S = 60.0
SILENT_ASKED_S = 30.0


class DiskJudge:
    """`disk/mount:POINT/full`, `…/read_only`, `…/silent`, `disk/disk:NAME/stuck`, and what disk_errors.py finds."""

    sensors = frozenset({"disks", "mounts", "kernel_log"})

    def __init__(self) -> None:
        self._standing = standing = Standing()
        self._errors = DiskErrors(standing)
        self._counters = LastCounts()
        self._ours: set[str] = set()
        """What the sensor of this machine's own disks told last."""
        self._were_free: set[str] = set()
        self._were_writable: set[str] = set()
        self._full = Condition(
            CAUSE,
            "full",
            standing,
            Lasting(15.0, 15.0),
            key="disk_full",
            advice="Make room, or have checkpoints and caches written elsewhere.",
        )
        self._read_only = Condition(
            CAUSE,
            "read_only",
            standing,
            Lasting(15.0, 15.0),
            key="disk",
            advice="`dmesg` says whether the file system met an error; then check it before it is mounted again.",
        )
        self._silent = Condition(
            CAUSE,
            "silent",
            standing,
            Lasting(SILENT_ASKED_S, 0.0),
            key="mount_silent",
            advice="Its server, or the way to it; whoever touches it waits.",
        )
        self._stuck = Condition(
            CAUSE,
            "stuck",
            standing,
            Lasting(STUCK_S, 0.0, readouts=3),
            key="disk_stuck",
            advice="The disk or its controller does not answer: `dmesg` may say more.",
        )

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges room, writability and answers of file systems, and disks that complete nothing."""
        found = self._errors.take(readout, now_s)
        told = values_of(readout)
        for subject, values in told.items():
            if subject.startswith("mount:"):
                found += self._judge_room(subject, values, readout.at_s, now_s)
                found += self._judge_writable(subject, values, readout.at_s, now_s)
                found += self._judge_answer(subject, values, readout.at_s, now_s)
            elif subject.startswith("disk:"):
                found += self._judge_flow(subject, values, readout.at_s, now_s)
        if readout.sensor == "disks" and not readout.trouble and not readout.is_silent:
            found += self._forget_gone(set(told), now_s)
        for condition in (self._full, self._read_only, self._silent, self._stuck):
            found += condition.forget(now_s)
        return found

    def _judge_room(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        free, total = number(values.get("free_bytes")), number(values.get("total_bytes"))
        if free is None or not total:
            return []
        no_inodes = number(values.get("free_inodes")) == 0
        is_full = no_inodes or free < min(FULL_BYTES, FULL_SHARE * total)
        if not is_full:
            self._were_free.add(subject)
        point = subject.removeprefix("mount:")
        is_fault = is_full and (subject in self._were_free or point in SYSTEMS) and not values.get("is_read_only")

        def say() -> Said:
            left = "no file can be made on it" if no_inodes else f"{free / 2**20:.0f} of {total / 2**20:.0f} MiB left"
            return f"{clip(point)} is full: {left}", {"free_bytes": free, "total_bytes": total, "no_inodes": no_inodes}

        return self._full.take(subject, is_fault, at_s, now_s, say)

    def _judge_writable(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        is_read_only = values.get("is_read_only")
        if not isinstance(is_read_only, bool):
            return []
        if not is_read_only:
            self._were_writable.add(subject)
        turned = is_read_only and subject in self._were_writable
        point, source = clip(subject.removeprefix("mount:")), clip(values.get("source", "?"))
        return self._read_only.take(
            subject, turned, at_s, now_s, lambda: (f"{point} ({source}) has become read-only", {"source": source})
        )

    def _judge_answer(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        is_answering = values.get("is_answering")
        if not isinstance(is_answering, bool):
            return []
        asked_s = number(values.get("asked_s")) or 0.0
        point = clip(subject.removeprefix("mount:"))
        return self._silent.take(
            subject,
            not is_answering,
            at_s,
            now_s,
            lambda: (f"{point} has not answered for {asked_s:.0f} s", {"asked_s": asked_s}),
        )

    def _judge_flow(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        done = self._counters.grown(f"{subject}/completed", values.get("completed"), at_s)
        waiting = number(values.get("in_flight"))
        is_stuck = None if done is None or waiting is None else waiting > 0 and done.by == 0
        disk = clip(subject.removeprefix("disk:"))
        return self._stuck.take(
            subject,
            is_stuck,
            at_s,
            now_s,
            lambda: (
                f"Disk {disk} has completed nothing for a minute, and {waiting:.0f} requests wait",
                {"in_flight": waiting},
            ),
        )

    def _forget_gone(self, is_there: set[str], now_s: float) -> list[Finding]:
        """Of a disk or a file system of this machine that is there no more, nothing is wrong."""
        gone, self._ours = self._ours - is_there, is_there
        self._were_free -= gone
        self._were_writable -= gone
        self._counters.forget(now_s)
        names = [f.id for f in self._standing.holding() if f.subject in gone]
        return [over for name in names for over in self._standing.end(name, now_s)]
