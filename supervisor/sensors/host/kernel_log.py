"""The kernel's log, waited on: machine checks, lockups, resets, I/O errors, Xids, OOM kills."""

from __future__ import annotations

import errno
import os

from guardrun.supervisor.health.base.readings import Happening, Readout
from guardrun.supervisor.sensors.base.sensor import happened, known, unknown
from guardrun.supervisor.sensors.base.small_files import why
from guardrun.supervisor.sensors.host.kernel_lines import LineReader, Record, parse_record

PATH = "/dev/kmsg"
RECORD_BYTES = 8192
"""The kernel's own limit for one record; a shorter read fails with EINVAL."""
MAX_OLD_RECORDS = 100_000
MAX_RECORDS = 500
"""A turn; more are taken at the next, which comes at once."""


class KernelLogSensor:
    """`log`: whether it may be read; what its lines tell from now on, each of its own subject.

    A line that is written from outside the kernel counts as well: only root can.
    """

    name = "kernel_log"
    period_s = 60.0
    timeout_s = 5.0

    def __init__(self, path: str = PATH) -> None:
        self._path = path
        self._fd = -1
        self._next_sequence = -1
        self._lines = LineReader()
        self.lost = 0
        """Lines that were overwritten before they were read, so far."""

    def fileno(self) -> int:
        """/dev/kmsg's; -1 while it is not open, and then each turn tries to open it."""
        return self._fd

    def read(self, now_s: float) -> Readout:
        """From /dev/kmsg; lines that were overwritten before they were read are `lines_lost` and trouble."""
        if self._fd < 0:
            try:
                self._open()
            except OSError as error:
                self.close()
                reason = why(error, self._path)
                return Readout(
                    sensor=self.name, at_s=now_s, samples=unknown("log", ("is_readable",), reason), trouble=reason
                )
        happenings, lost = self._take(now_s)
        trouble = ""
        if lost:
            self.lost += lost
            trouble = f"{lost} lines of the kernel's log were lost: it was overwritten before it was read"
            happenings.insert(0, happened("log", "lines_lost", now_s, trouble, lines=lost))
        samples = known("log", is_readable=self._fd >= 0, lost_lines=self.lost)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, happenings=happenings, trouble=trouble)

    def _open(self) -> None:
        """From now on: what was before is nobody's here, but for the number of its last line. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._next_sequence = -1
        for _ in range(MAX_OLD_RECORDS):
            if self._next() is None:
                break
        else:
            os.lseek(self._fd, 0, os.SEEK_END)
        if self._fd < 0:
            raise OSError(errno.EINVAL, "is no log of the kernel's")

    def _take(self, now_s: float) -> tuple[list[Happening], int]:
        """Happenings of the lines since the last turn, and how many lines were lost."""
        happenings: list[Happening] = []
        lost = 0
        for _ in range(MAX_RECORDS):
            expected = self._next_sequence
            record = self._next()
            if record is None:
                break
            lost += max(0, record.sequence - expected) if expected >= 0 else 0
            happening = self._lines.read(record.message, now_s)
            if happening is not None:
                happenings.append(happening)
        return happenings, lost

    def _next(self) -> Record | None:
        """The next line; None where there is none yet. Closes what can't be read any more."""
        while self._fd >= 0:
            try:
                record = parse_record(os.read(self._fd, RECORD_BYTES).decode("utf-8", "replace"))
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # Overwritten: the next read gives the oldest that is kept, and its number tells the rest.
                self.close()
                return None
            if record is None:
                self.close()  # No log, whatever it is.
                return None
            self._next_sequence = record.sequence + 1
            return record
        return None

    def close(self) -> None:
        """Close the log; the next read would open it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
