"""The agent's log: entries with fields where journald listens, else JSON lines on standard error."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from guardrun.supervisor.base.log import log_to
from guardrun.supervisor.base.printable import make_printable
from guardrun.systemd.journal import Journal, field_name, is_journal

IDENTIFIER = "guardrund"


class _Stderr:
    """Standard error, which may be gone or full: nobody who reads it holds up the agent's work by more than a line."""

    def write(self, text: str) -> None:
        try:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def flush(self) -> None:
        """Nothing: each line has been written."""


def set_up_agent_log(environ: Mapping[str, str]) -> Journal | None:
    """Configure structlog for this process. Whoever calls closes the journal, where there is one, at the end."""
    if not is_journal(2, environ):
        log_to(_Stderr())
        return None
    import structlog  # by now without rich: see supervisor/base/log.py

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
