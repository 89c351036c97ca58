"""What the kernel's log and disks' own counters say of disks that fail. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.persistence import LastCounts, Moments, clip, values_of
from guardrun.supervisor.health.base.readings import Happening, Readout
from guardrun.supervisor.health.base.responses import finding_id, host_finding

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

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
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
