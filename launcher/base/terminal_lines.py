"""The launcher's few lines, for the person on stderr, for later in guardrun.log; its exit statuses."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from guardrun.supervisor.base.background_work import BackgroundWriter, Work
from guardrun.supervisor.base.own_files import open_to_add
from guardrun.supervisor.base.printable import encode_json, make_harmless
from guardrun.supervisor.base.redaction import redact_fields, redact_text

LOG_FILE = "guardrun.log"


def print_line(text: str) -> None:
    """One line on stderr. A terminal that is gone is no reason to stop."""
    if sys.stderr is None:  # Closed at the start: print() would take stdout instead.
        return
    with suppress(OSError, ValueError):
        print(f"guardrun: {make_harmless(redact_text(text))}", file=sys.stderr, flush=True)


def flush_streams() -> None:
    """Bring our own output out. A stream is None where it was closed at the start."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


class Log:
    """Appends JSON lines, as structlog writes them, to the run's log; silently none where that fails.

    In a thread of its own, as all that the launcher does in the run directory while there is something to watch: a file
    system that does not answer holds up neither signals nor the ends of ranks.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG_FILE
        self._writer = BackgroundWriter()

    def write(self, event: str, **fields: Any) -> None:
        """Append one line with the time and these fields; what looks like a secret is redacted. Never waits."""
        at = datetime.fromtimestamp(time.time(), timezone.utc).isoformat()
        line = encode_json({"event": event, "part": "launcher", "timestamp": at, **redact_fields(fields)}) + b"\n"
        self._writer.put(lambda: self._append(line))

    def put(self, work: Work) -> None:
        """Have something else done there, in order, some time."""
        self._writer.put(work)

    def close(self) -> bool:
        """Wait until all has been done; False where the disk does not answer, or too slowly."""
        return self._writer.close()

    def _append(self, line: bytes) -> None:
        with suppress(OSError), open(open_to_add(self._path), "ab", buffering=0) as file:
            file.write(line)


# Exit statuses ------------------------------------------------------------------------------------------------------
# How guardrun ends where it starts nothing.


USAGE_ERROR = 2
INTERRUPTED = 130
QUARANTINED = 69
"""guardrun's exit status on a quarantined node: EX_UNAVAILABLE of sysexits.h."""
NOT_FIT = 71
"""Where the pre-flight found what no run can get past: EX_OSERR."""


class RefusedError(Exception):
    """No run starts here; says why, and the ways out."""

    def __init__(self, text: str, exit_status: int) -> None:
        super().__init__(text)
        self.exit_status = exit_status
