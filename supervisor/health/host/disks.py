"""Disks, and the file systems on them and elsewhere: full, read-only, failing, stuck, silent. Pure.

A disk that is kept full on purpose (a data set's) is nobody's fault: a file system is found full where it became so
while we watched, or where the system itself writes to. A mount that turned read-only may be somebody's wish: it is a
fault where the kernel's log says that it was an error.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding, Standing, finding_id, host_finding
from guardrun.supervisor.health.base.persistence import (
    Condition,
    LastCounts,
    Lasting,
    Moments,
    Said,
    clip,
    number,
    values_of,
)
from guardrun.supervisor.health.base.readings import Happening, Readout, Value

# Disk errors --------------------------------------------------------------------------------------------------------
# What the kernel's log and disks' own counters say of disks that fail.


CAUSE = "disk"
WITHIN_S = 600.0
IO_ERRORS = 3
APART_S = 2.0
"""One bad request is tried again at once, and told several times: those count once they come apart."""
RESETS = 2
COUNTED = 20
"""A disk's own counter also counts commands that it does not know; so many in ten minutes are more than that."""
LAST_S = 3600.0
"""A file system that was shut down, a disk that was lost: told for so long, unless it comes back."""
_NAMES = {
    "io_error": ("errors", "has I/O errors", "disk_io"),
    "disk_reset": ("resets", "had to be reset", "disk_reset"),
    "disk_lost": ("lost", "does not answer any more", "disk_lost"),
    "fs_read_only": ("shut_down", "holds a file system that met an error and is read-only now", "disk_read_only"),
    "fs_error": ("fs_errors", "holds a file system with errors", "disk_io"),
}
_AT_ONCE = frozenset(("disk_lost", "fs_read_only"))
_NO_DISKS = ("disk:loop", "disk:nbd", "disk:rbd", "disk:zram", "disk:ram")
"""Images and others' disks (a container's image on a file server): their errors blame no disk of this node."""
_ADVICE = "Look at `dmesg` and `smartctl -a`; check the file system before it is used again."


class DiskErrors:
    """`disk/disk:NAME/errors`, `…/resets`, `…/lost`, `…/shut_down`, `…/fs_errors`, `…/counted`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._counters = LastCounts()
        self._moments = {name: Moments(LAST_S if name in _AT_ONCE else WITHIN_S) for name in _NAMES}
        self._counted = Moments(WITHIN_S)

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges the kernel log's disk happenings, and growth of the disks' own `io_errors`."""
        found: list[Finding] = []
        for happening in readout.happenings:
            if happening.name in _NAMES and not happening.subject.startswith(_NO_DISKS):
                found += self._failed(happening, now_s)
        for subject, values in values_of(readout).items():
            growth = self._counters.grown(subject, values.get("io_errors"), readout.at_s)
            if growth is not None and growth.by:
                found += self._grew(subject, int(growth.by), readout.at_s, now_s)
        return found + self._end_old(now_s)

    def _failed(self, happening: Happening, now_s: float) -> list[Finding]:
        what, text, key = _NAMES[happening.name]
        subject, moments = happening.subject, self._moments[happening.name]
        count = moments.add(subject, happening.at_s, now_s)
        is_proof = happening.name in _AT_ONCE
        if happening.name == "disk_reset":
            is_proof = count >= RESETS
        elif not is_proof:
            is_proof = count >= IO_ERRORS and moments.spread_s(subject) >= APART_S
        if not is_proof:
            return []
        often = f" ({count} times in {WITHIN_S / 60:.0f} minutes)" if count > 1 else ""
        return self._standing.hold(
            host_finding(
                CAUSE,
                subject,
                what,
                key=key,
                since_s=moments.first_s(subject) or happening.at_s,
                told_s=now_s,
                summary=f"Disk {clip(subject.removeprefix('disk:'))} {text}{often}",
                evidence={"times": count, "last": happening.text},
                advice=_ADVICE,
            ),
            news=str(len(str(count))),
        )

    def _grew(self, subject: str, by: int, at_s: float, now_s: float) -> list[Finding]:
        count = self._counted.add(subject, at_s, now_s, by)
        if count < COUNTED:
            return []
        return self._standing.hold(
            host_finding(
                CAUSE,
                subject,
                "counted",
                since_s=self._counted.first_s(subject) or at_s,
                told_s=now_s,
                summary=f"Disk {clip(subject.removeprefix('disk:'))} counts errors ({count} in ten minutes)",
                evidence={"errors": count},
                advice=_ADVICE,
            )
        )

    def _end_old(self, now_s: float) -> list[Finding]:
        found: list[Finding] = []
        for finding in self._standing.holding():
            what = finding.id.rsplit("/", 1)[-1]
            moments = next((self._moments[name] for name, (end, _, _) in _NAMES.items() if end == what), None)
            moments = self._counted if what == "counted" else moments
            if moments is not None and not moments.count(finding.subject, now_s):
                found += self._standing.end(finding_id(CAUSE, finding.subject, what), now_s)
        return found


# Disks --------------------------------------------------------------------------------------------------------------


FULL_BYTES = 256 << 20
"""Nothing that trains can do with less; or 1 % of a small one."""
FULL_SHARE = 0.01
SYSTEMS = frozenset(("/", "/tmp", "/var", "/var/tmp", "/var/log", "/dev/shm", "/run", "/home", "/scratch", "/local"))
"""Where a full file system is a fault however it came about."""
STUCK_S = 60.0
SILENT_ASKED_S = 30.0


class DiskJudge:
    """`disk/mount:POINT/full`, `…/read_only`, `…/silent`, `disk/disk:NAME/stuck`, and what disks.py finds."""

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

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges room, writability and answers of file systems, and disks that complete nothing."""
        found = self._errors.judge_readout(readout, now_s)
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

        def describe() -> Said:
            left = "no file can be made on it" if no_inodes else f"{free / 2**20:.0f} of {total / 2**20:.0f} MiB left"
            return f"{clip(point)} is full: {left}", {"free_bytes": free, "total_bytes": total, "no_inodes": no_inodes}

        return self._full.update(subject, is_fault, at_s, now_s, describe)

    def _judge_writable(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        is_read_only = values.get("is_read_only")
        if not isinstance(is_read_only, bool):
            return []
        if not is_read_only:
            self._were_writable.add(subject)
        turned = is_read_only and subject in self._were_writable
        point, source = clip(subject.removeprefix("mount:")), clip(values.get("source", "?"))
        return self._read_only.update(
            subject, turned, at_s, now_s, lambda: (f"{point} ({source}) has become read-only", {"source": source})
        )

    def _judge_answer(self, subject: str, values: dict[str, Value], at_s: float, now_s: float) -> list[Finding]:
        is_answering = values.get("is_answering")
        if not isinstance(is_answering, bool):
            return []
        asked_s = number(values.get("asked_s")) or 0.0
        point = clip(subject.removeprefix("mount:"))
        return self._silent.update(
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
        return self._stuck.update(
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
