"""The agent's log: entries with fields where journald listens, else JSON lines on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from guardrun.supervisor.log import QuietFile, set_up_log
from guardrun.supervisor.printable import make_printable
from guardrun.systemd.journal import Journal, field_name, is_journal

IDENTIFIER = "guardrund"


def set_up_agent_log(environ: Mapping[str, str]) -> Journal | QuietFile | None:
    """Configure structlog for this process. Whoever calls closes what it answers, at the end."""
    if not is_journal(sys.stderr.fileno(), environ):
        return set_up_log(Path("/dev/stderr"))
    import structlog  # by now without rich: see supervisor/log.py

    journal = Journal(IDENTIFIER)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            lambda logger, method, event: _send(journal, event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return journal


def _send(journal: Journal, event: MutableMapping[str, Any]) -> str:
    """One entry: the sentence for a person as its message, everything else as GUARDRUN_ fields."""
    from structlog import DropEvent

    values = make_printable(dict(event))
    level, name = str(values.pop("level", "info")), str(values.pop("event", ""))
    summary = values.pop("summary", "")
    words = " ".join(f"{key}={value}" for key, value in values.items() if value not in ("", [], {}))
    message = f"{name}: {summary}" if summary else f"{name} {words}".rstrip()
    fields = {field_name(key): str(value) for key, value in values.items()}
    journal.send(message, level, {"GUARDRUN_EVENT": name, **fields})
    raise DropEvent
