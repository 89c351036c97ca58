"""The journal of a run that goes on, followed: what is new since the last look, in bounded work each time.

It begins some way before the journal's end, and skips ahead where more has been written than may be read at once: what
is shown of a run is how it does now. What is torn, strange or far too long is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

from guardrun.supervisor.base.own_files import open_own
from guardrun.supervisor.query.journal_reader import Entry, parse_entry
from guardrun.supervisor.rundir.journal_end import JOURNAL

FIRST_BYTES = 16 << 20
"""Of the first look: some hours of a job of eight ranks."""
EACH_BYTES = 8 << 20
"""Of each later one: what ten thousand ranks report in some seconds."""
BEFORE = f"{JOURNAL}.1"


class JournalTail:
    """Follows one run's; one thread at a time."""

    def __init__(self, run_dir: Path, first_bytes: int = FIRST_BYTES, each_bytes: int = EACH_BYTES) -> None:
        self._run_dir, self._first_bytes, self._each_bytes = run_dir, first_bytes, each_bytes
        self._inode: int | None = None
        self._offset = 0
        self._is_inside_line = False
        """What is read next is the rest of a line that is passed over."""
        self.skipped_bytes = 0
        """Passed over because there was too much at once."""

    def read(self) -> list[Entry]:
        """What has been added since the last time. Raises OSError where there is no journal that may be read."""
        fd = open_own(self._run_dir / JOURNAL, is_anybodys=True)
        try:
            about = os.fstat(fd)
            entries: list[Entry] = []
            most = self._each_bytes
            if self._inode is None:
                entries, most = self._begin(about.st_size), self._first_bytes
            elif about.st_ino != self._inode:
                entries = self._finish_before()
                self._offset, self._is_inside_line = 0, False
            elif about.st_size < self._offset:  # begun anew in place
                self._offset, self._is_inside_line = 0, False
            self._inode = about.st_ino
            return entries + self._read(fd, about.st_size, most)
        finally:
            os.close(fd)

    def _begin(self, size: int) -> list[Entry]:
        """Where the first look begins; what there is of the file before, where this one is shorter than that."""
        self._offset = max(0, size - self._first_bytes)
        self._is_inside_line = self._offset > 0
        if self._offset:
            return []
        offset, is_inside = self._offset, self._is_inside_line
        try:
            fd = open_own(self._run_dir / BEFORE, is_anybodys=True)
        except OSError:
            return []
        try:
            before = os.fstat(fd).st_size
            self._offset = max(0, before - (self._first_bytes - size))
            self._is_inside_line = self._offset > 0
            return self._read(fd, before, self._first_bytes)
        finally:
            os.close(fd)
            self._offset, self._is_inside_line = offset, is_inside

    def _finish_before(self) -> list[Entry]:
        """The rest of the file that has been followed, where it is the last that was set aside."""
        try:
            fd = open_own(self._run_dir / BEFORE, is_anybodys=True)
        except OSError:
            return []
        try:
            about = os.fstat(fd)
            return self._read(fd, about.st_size, self._each_bytes) if about.st_ino == self._inode else []
        finally:
            os.close(fd)

    def _read(self, fd: int, size: int, most: int) -> list[Entry]:
        if size - self._offset > most:
            self.skipped_bytes += size - most - self._offset
            self._offset, self._is_inside_line = size - most, True
        data = os.pread(fd, size - self._offset, self._offset) if size > self._offset else b""
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) >= most:  # a line longer than all that is read: the rest of it is passed over, too
                self._offset, self._is_inside_line = self._offset + len(data), True
            return []
        self._offset += end
        lines = data[:end].split(b"\n")[:-1]
        if self._is_inside_line:
            lines, self._is_inside_line = lines[1:], False
        return [entry for line in lines if (entry := parse_entry(line)) is not None and entry.kind]
