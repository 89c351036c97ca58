"""The door: events whose texts come from outside."""

from __future__ import annotations

import io
import json

from guardrun.supervisor.base.log import format_line, log_to
from guardrun.supervisor.daemon.event_redaction import without_secrets
from guardrun.supervisor.engine.model import events as ev
from tests.report.secrets import S

ERROR = ev.ErrorRecord(error="RuntimeError", message=f"token={S}", traceback=f'  File "t.py"\nRuntimeError: token={S}')


def test_of_each_event_that_brings_texts() -> None:
    trace = ev.ExitTrace(global_rank=0, error=ERROR, stderr_tail=f"password={S}\n")
    bare = ev.ExitTrace(global_rank=1)
    for event in (
        ev.UncaughtExceptionReported(attempt=0, global_rank=0, error=ERROR),
        ev.ExitsRead(attempt=0, traces=[trace, bare], last_words={"n1": f"free(): invalid, api_key={S}"}),
        ev.AttemptNotStarted(attempt=0, error=f"https://me:{S}@host refused"),
    ):
        kept = without_secrets(event)
        assert type(kept) is type(event)
        assert S in repr(event) and S not in repr(kept) and "(not recorded)" in repr(kept)
        assert without_secrets(kept) == kept


def test_others_are_left_as_they_are() -> None:
    event = ev.RankEnded(attempt=0, global_rank=0)
    assert without_secrets(event) is event


def test_of_lines_of_the_log_and_of_the_terminal() -> None:
    import structlog

    file = io.StringIO()
    before = structlog.get_config()
    try:
        log_to(file)
        structlog.get_logger().info("said", text=f"password={S}", number=3)
    finally:
        structlog.configure(**before)
    line = json.loads(file.getvalue())
    assert (line["event"], line["text"], line["number"]) == ("said", "password=(not recorded)", 3)
    assert format_line(f"token={S}", "info", has_colour=False) == "guardrun: token=(not recorded)\n"
