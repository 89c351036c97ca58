"""What the supervisor says: entries in its log, and guardrun's own lines on the terminal.

structlog imports rich for pretty tracebacks on a terminal wherever it is installed: 65 ms and some megabytes that a
daemon writing JSON has no use for. Hidden during that one import, rich stays importable for everybody else.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.own_files import open_to_add
from guardrun.supervisor.base.redaction import redact_fields, redact_text

_had_rich = "rich" in sys.modules
if not _had_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` raise ImportError, as documented
try:
    import structlog
finally:
    if not _had_rich:
        del sys.modules["rich"]

log: Any = structlog.get_logger()


class QuietFile:
    """A log file whose disk may fill up, or not answer: what can't be written is dropped."""

    def __init__(self, path: Path, writer: BackgroundWriter | None) -> None:
        """writer: who writes; None: whoever calls. Raises OSError where it can't be opened."""
        self._file = open(open_to_add(path), "a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._writer = writer

    def write(self, text: str) -> None:
        """Write, or hand to the writer's thread; never raises, never waits for a disk where there is a writer."""
        if self._writer is None:
            self._write(text)
        else:
            self._writer.put(lambda: self._write(text))

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)  # a line at a time, which its buffering writes out
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Nothing: each line has been written."""

    def close(self) -> None:
        """Close the file; what its disk refuses is dropped, too."""
        try:
            self._file.close()
        except OSError:
            pass


def set_up_log(path: Path, writer: BackgroundWriter | None = None) -> QuietFile | None:
    """Log JSON lines to a file; to nowhere, and None, where it can't be opened. writer: who writes."""
    try:
        log_file = QuietFile(path, writer)
    except OSError:
        structlog.configure(processors=[_drop])
        return None
    log_to(log_file)
    return log_file


def log_to(file: Any) -> None:
    """Log JSON lines to whatever has `write` and `flush`."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=file),
    )


def _redact(logger: object, method: str, event: Any) -> Any:
    return redact_fields(event)


def _drop(logger: object, method: str, event: Any) -> Any:
    raise structlog.DropEvent


# Terminal -----------------------------------------------------------------------------------------------------------
# guardrun's own lines on the terminal: few, on stderr, prefixed, coloured on a terminal only.
#
# Written by a thread of their own: a terminal that is stopped, or a pipe that nobody reads, must not hold the
# supervisor.


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

    def print_line(self, text: str, level: str = "info") -> None:
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
