"""An exception as data: the board's neighbour `raised-ATTEMPT-RANK.json`, and torchrun's error file.

Imported only when a rank has failed. The json module writes what msgspec reads: msgspec itself might be what is
missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any

from guardrun.hooks.rank.rank import Rank

MAX_TEXT_CHARS = 32 * 1024
"""As in hooks.messages, which needs msgspec."""
MAX_FRAMES = 100
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
HANDLER_MODULE = "torch.distributed.elastic.multiprocessing.errors"


def describe(error: BaseException, tb: TracebackType | None) -> dict[str, Any]:
    """The fields of messages.UncaughtException. Long texts are cut: a message at its end, a traceback in its middle."""
    return {
        "at_ns": time.monotonic_ns(),
        "error": qualified_name(type(error)),
        "message": _clean(_text_of(error))[:MAX_TEXT_CHARS],
        "traceback": _shorten(_clean("".join(traceback.format_exception(type(error), error, tb)))),
        "frames": _frames_of(error, tb),
    }


def describe_exit(text: str, frames: list[tuple[str, str, int]], at_ns: int) -> dict[str, Any]:
    """The same of `sys.exit(text)`, which has no traceback."""
    message = _clean(text)[:MAX_TEXT_CHARS]
    places = [(_clean(file), function, line) for file, function, line in frames]
    return {"at_ns": at_ns, "error": "SystemExit", "message": message, "traceback": "", "frames": places}


def _shorten(text: str) -> str:
    """Without its middle, where it is too long: where the error came from, and what it says in the end, both stay."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2 - 40
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"


def describe_batch(rank: Rank) -> dict[str, Any]:
    """UncaughtException.data. Never raises: a sampler's attributes are the script's."""
    try:
        return rank.batches.describe() if rank.batches is not None else {}
    except Exception as error:
        rank.fail("last batch", error)
        return {}


def qualified_name(kind: type) -> str:
    """`torch.OutOfMemoryError`; builtin ones without their module."""
    module = getattr(kind, "__module__", "")
    return kind.__qualname__ if module in ("builtins", "") else f"{module}.{kind.__qualname__}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # A broken __str__ is the script's.
        return f"<no text: {type(second).__name__}>"


def _clean(text: str) -> str:
    """Without lone surrogates, which msgspec refuses."""
    return text.encode("utf-8", "backslashreplace").decode()


def _frames_of(error: BaseException, tb: TracebackType | None) -> list[tuple[str, str, int]]:
    """(file, function, line), outermost first; the innermost MAX_FRAMES."""
    frames = [(_clean(frame.f_code.co_filename), frame.f_code.co_name, line) for frame, line in traceback.walk_tb(tb)][
        -MAX_FRAMES:
    ]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.append((_clean(error.filename), "<module>", error.lineno))
    return frames


def write_raised(rank: Rank, fields: dict[str, Any]) -> None:
    """Leave the exception beside the board, whole or not at all."""
    path = os.path.join(rank.sockets, f"raised-{rank.attempt}-{rank.global_rank}.json")
    whole = {"type": "raised", "attempt": rank.attempt, "global_rank": rank.global_rank, "pid": rank.pid, **fields}
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(whole, file)
        os.replace(f"{path}.new", path)
    except OSError as error:  # The folder is full or gone: the message and torchrun's file are left.
        rank.fail("raised file", error)


def write_torchelastic(error: BaseException, tb: TracebackType | None) -> None:
    """Give torchrun's error file the traceback, as @record would have, unless something has written it already.

    Format: torch/distributed/elastic/multiprocessing/errors/error_handler.py, `record_exception`. That function takes
    the traceback of the exception being handled, and here none is; so only a handler of the user's own is called.
    """
    path = os.environ.get(ERROR_FILE)
    if not path or (os.path.exists(path) and os.path.getsize(path) > 0):
        return
    handler = _own_handler()
    if handler is not None:
        before = error.__traceback__
        try:
            raise error.with_traceback(tb)
        except type(error):
            handler.record_exception(error)
        finally:
            error.__traceback__ = before
        return
    data = {
        "message": {
            "message": f"{type(error).__name__}: {_text_of(error)}",
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(type(error), error, tb)),
                "timestamp": str(int(time.time())),
            },
        }
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


def _own_handler() -> Any:
    """The script's own ErrorHandler, where it has put one in torch's place."""
    errors = sys.modules.get(HANDLER_MODULE)
    make = getattr(errors, "get_error_handler", None)
    if make is None:
        return None
    handler = make()
    return None if type(handler).__module__.startswith("torch.") else handler
