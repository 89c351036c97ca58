"""guardrun's own lines on the terminal: few, on stderr, prefixed, coloured on a terminal only.

Written by a thread of their own: a terminal that is stopped, or a pipe that nobody reads, must not hold the supervisor.
"""

from __future__ import annotations

import os
import queue
import threading

from guardrun.supervisor.base.redaction import redact_text

_COLOURS = {"info": "36", "good": "32", "warn": "33", "bad": "1;31"}
_MAX_WAITING = 200


def format_line(text: str, level: str, *, has_colour: bool) -> str:
    """One line, with its prefix. Line breaks in text become spaces; control characters and secrets are left out."""
    clean = redact_text("".join(c if c.isprintable() else " " for c in " ".join(text.split())))
    if not has_colour:
        return f"guardrun: {clean}\n"
    return f"\x1b[{_COLOURS.get(level, '0')}mguardrun:\x1b[0m {clean}\n"


class Terminal:
    """Says lines without ever waiting."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._has_colour = os.isatty(fd) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._queue: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def say(self, text: str, level: str = "info") -> None:
        """Say one line; dropped where 200 are already waiting. Any thread may."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="guardrun-terminal", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(format_line(text, level, has_colour=self._has_colour))
        except queue.Full:
            pass

    def close(self, timeout_s: float = 1.0) -> None:
        """Wait (a little) until all is written."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                os.write(self._fd, line.encode(errors="replace"))
            except OSError:
                return  # nobody is there any more
