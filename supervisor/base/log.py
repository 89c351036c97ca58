"""structlog for the supervisor, without what structlog.dev would bring along.

structlog imports rich for pretty tracebacks on a terminal wherever it is installed: 65 ms and some megabytes that a
daemon writing JSON has no use for. Hidden during that one import, rich stays importable for everybody else.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from guardrun.supervisor.base.background_writer import BackgroundWriter
from guardrun.supervisor.base.own_files import open_to_add
from guardrun.supervisor.base.redaction import redact_fields

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

    def __init__(self, path: Path, scribe: BackgroundWriter | None) -> None:
        """scribe: who writes; None: whoever calls. Raises OSError where it can't be opened."""
        self._file = open(open_to_add(path), "a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._scribe = scribe

    def write(self, text: str) -> None:
        """Write, or hand to the writer's thread; never raises, never waits for a disk where there is a writer."""
        if self._scribe is None:
            self._write(text)
        else:
            self._scribe.put(lambda: self._write(text))

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


def set_up_log(path: Path, scribe: BackgroundWriter | None = None) -> QuietFile | None:
    """Log JSON lines to a file; to nowhere, and None, where it can't be opened. scribe: who writes."""
    try:
        log_file = QuietFile(path, scribe)
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
