"""A program on a terminal of its own: what its screen shows, key presses, other sizes."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte

from tests.support.waiting import wait_until

_TAKES_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Its children hear of another size, and of Ctrl-C, only where it is their controlling terminal."""


class Terminal:
    """Starts it; `close`, or the end of a `with` block, ends it."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        """command: an absolute path first."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.written = b""
        """All that it has written."""
        self._master, slave = os.openpty()
        self._set_size(columns, rows)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKES_TERMINAL, *command], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # EIO: nobody has the other side open any more
                return
            if not data:
                return
            with self._lock:
                self.written += data
                self._stream.feed(data)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Another size, as when its window is drawn larger."""
        with self._lock:
            self._screen.resize(rows, columns)
        self._set_size(columns, rows)

    def press(self, keys: str) -> None:
        """Type these."""
        os.write(self._master, keys.encode())

    def lines(self) -> list[str]:
        """What the screen shows."""
        with self._lock:
            return list(self._screen.display)

    def text(self) -> str:
        """The same, as one text."""
        return "\n".join(line.rstrip() for line in self.lines())

    def wait_for(self, *parts: str, timeout_s: float = 60.0) -> str:
        """Wait until the screen shows all of these, and answer what it shows."""

        def read() -> str:
            text = self.text()
            return text if all(part in text for part in parts) else ""

        try:
            return wait_until(read, timeout_s, f"{parts} on the screen")
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def wait_for_end(self, timeout_s: float = 60.0) -> int:
        """Its exit code; by then all that it has written is in `written`."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code
