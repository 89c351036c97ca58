"""The door: what events bring from outside is without secrets before the engine, the journal or anybody else sees it.

An exception's message, the end of a rank's stderr, why something could not be started: whatever a script, a library or
a service has said. Command lines are recorded without arguments where they are read (`launcher/proc.short_command`),
guardrun's own when the run is opened. Paths are left as they are: they are gone by.
"""

from __future__ import annotations

import msgspec

from guardrun.supervisor.base.redaction import redact_text
from guardrun.supervisor.engine.model import events as ev


def without_secrets(event: ev.Event) -> ev.Event:
    """The same event; itself where it brings no such texts, as nearly all do."""
    if isinstance(event, ev.UncaughtExceptionReported):
        return msgspec.structs.replace(event, error=_redact_error(event.error))
    if isinstance(event, ev.ExitsRead):
        words = {node: redact_text(said) for node, said in event.last_words.items()}
        return msgspec.structs.replace(event, traces=[_redact_trace(trace) for trace in event.traces], last_words=words)
    if isinstance(event, ev.AttemptNotStarted):
        return msgspec.structs.replace(event, error=redact_text(event.error))
    if isinstance(event, ev.SavedInTime):
        return msgspec.structs.replace(event, why=redact_text(event.why))
    if isinstance(event, ev.HandChangeAsked):
        return msgspec.structs.replace(event, text=redact_text(event.text))
    return event


def _redact_error(error: ev.ErrorRecord) -> ev.ErrorRecord:
    return msgspec.structs.replace(error, message=redact_text(error.message), traceback=redact_text(error.traceback))


def _redact_trace(trace: ev.ExitTrace) -> ev.ExitTrace:
    error = None if trace.error is None else _redact_error(trace.error)
    return msgspec.structs.replace(trace, error=error, stderr_tail=redact_text(trace.stderr_tail))
