"""guardctl's other verbs, for keys: each in a process of its own, its output bounded, ended with whoever asked."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

MAX_BYTES = 4 << 20
"""Of what a verb prints."""
SECONDS = 150.0
"""For the slowest: ranks that examine themselves have two minutes."""


class Said(NamedTuple):
    """What a verb has printed."""

    text: str
    code: int | None
    """Its exit code; None: it took too long, said too much, or was ended."""


class Commands:
    """Runs verbs, from any thread; `close` ends those that still run."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def run(self, arguments: Sequence[str], columns: int, seconds: float = SECONDS) -> Said:
        """Run one and answer what it printed, stderr with it. columns: how wide its tables may be."""
        command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", *arguments]
        environ = {**self._environ, "COLUMNS": str(max(40, columns)), "NO_COLOR": "1", "PYTHONUTF8": "1"}
        with self._lock:
            if self._is_closed:
                return Said("", None)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
            )
            self._running.add(process)
        killer = threading.Timer(seconds, process.kill)
        killer.daemon = True
        killer.start()
        try:
            assert process.stdout is not None
            with process.stdout:
                data = process.stdout.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                process.kill()
            code = process.wait()
        finally:
            killer.cancel()
            with self._lock:
                self._running.discard(process)
        text = data[:MAX_BYTES].decode("utf-8", "replace")
        return Said(text, code if code >= 0 and len(data) <= MAX_BYTES else None)

    def close(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                with suppress(OSError):
                    process.kill()
