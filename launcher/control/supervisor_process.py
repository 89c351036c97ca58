"""The supervisor as a child process: started before torch is imported, told its run, watched, started again.

It must never matter to training that it died: after too many deaths it is given up, and the launcher goes on alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from guardrun.launcher.base.processes import ProcessHandle, read_stat

DAEMON_CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.supervisor.guardrund import main; sys.exit(main())"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""

DAEMON_COMMAND = (sys.executable, "-c", DAEMON_CODE, "guardrund")


UNWRITTEN = 4
"""Exit status of one that has done its part, but whose disk had not taken all by its end."""


class Daemon:
    """One guardrund process, from its start to its end."""

    def __init__(self, command: Sequence[str] = DAEMON_COMMAND) -> None:
        """Start it: it loads what it needs and waits for its run. Raises OSError where it cannot be started."""
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, start_new_session=True)
        self.is_assigned = False
        self._handle = ProcessHandle(self._process.pid)

    @property
    def pid(self) -> int:
        """Stays its own, ended or not, until its exit code has been collected."""
        return self._process.pid

    @property
    def fileno(self) -> int | None:
        """Readable once it has ended; None: `is_alive`, which SIGCHLD is a reason to ask."""
        return self._handle.fileno

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet (a zombie has); asking collects its exit code."""
        return self._process.poll() is None

    @property
    def has_ended_well(self) -> bool:
        """It has said that the run is over, or was never told one."""
        return self._process.poll() in (0, UNWRITTEN)

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    @property
    def is_stopped(self) -> bool:
        """By a signal, as SIGSTOP."""
        stat = read_stat(self.pid)
        return stat is not None and stat.state == "T"

    def assign(self, run_dir: Path) -> None:
        """Tell it its run: from here on it works. Its death is found by watching, not here."""
        self.is_assigned = True
        stdin = self._stdin()
        try:
            stdin.write(os.fsencode(run_dir) + b"\n")
            stdin.close()
        except OSError:
            pass

    def end(self, patience_s: float) -> bool:
        """Give it patience_s to end by itself, then SIGKILL. False where it has not written all."""
        try:
            is_all_written = self._process.wait(patience_s) == 0
        except subprocess.TimeoutExpired:
            is_all_written = False
            self.kill()
        self.close()
        return is_all_written

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self._process.send_signal(signal.SIGKILL)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            pass

    def close(self) -> None:
        """Close descriptors. The process must have ended."""
        try:
            self._stdin().close()
        except OSError:
            pass
        self._handle.close()

    def discard(self) -> None:
        """There will be no run: end it at once."""
        if self._process.poll() is None:
            self.kill()
        self.close()

    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin
