"""What a person asks of a rank's own hooks, and what they answer: two files beside the board, and three of its words.

The supervisor writes the request, then its number on the board (`Field.EXAMINE_ASKED`). The hooks' thread takes it with
its next beat (EXAMINE_TAKEN), does what is asked, writes the answer, and then its number (EXAMINE_GIVEN). Where the GIL
is held, no beat comes, and nothing is taken.

One that takes long ends earlier where a third file says so, with what it has found out by then.

All are JSON: a rank need not have msgspec.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_CODE_BYTES = 64 * 1024
"""Of code that is to be run (`eval`), in UTF-8."""
MAX_REQUEST_BYTES = 8 * MAX_CODE_BYTES
MAX_ANSWER_BYTES = 64 * 1024
MAX_TRACE_BYTES = 1024 * 1024
"""Of an answer with rows of modules (`modules`); what one rank may take of that, the request says."""
STOP = "stop"
"""What is asked for where one that goes on is to end; its argument: of which kind (`what`)."""
MAX_SECONDS = 600.0
"""The longest that a request may have a rank examine itself; …"""
MIN_TRACED_S = 10.0
"""… and the shortest for which allocations are traced: two pairs of snapshots, a beat apart, and some steps between."""
MAX_TRACED_STEPS = 1000
EVAL = "eval"
"""What runs a person's code: asked for on the rank's own node, and by no other way (supervisor/node/live_code.py)."""
MAX_EVALUATED_S = 60.0
"""The longest that code may run: the thread that trains runs nothing else meanwhile."""
MAX_FACTOR = 1e6
RATE = "rate"
"""What changes learning rates, on all ranks at the same step."""
SAVE = "save"
"""What calls the script's own function (hooks.save_with), or its trainer's. Nobody asks for it but the supervisor."""
LAST_STEP = 0
"""Whichever step the rank has finished, as it trains on."""
MAX_FILES = 10_000
"""Of a folder that was saved: so many are looked at."""
SAVE_PREFIX = "_guardrun-"
"""Of the folder in which a trainer's checkpoint is written before it is put in place."""
PROFILE = "profile"
"""What is asked for where torch's profiler is to be put on: its answer stands in a file beside that is read at once."""
SNAPSHOT = "snapshot"
"""Likewise where the allocator of its device is to tell all that it holds: the file is only moved."""
MAX_PROFILED_STEPS = 20
MAX_PROFILED_S = 300.0
STEP_MARK = "guardrun.step#"
"""What stands in a profile at the end of each step, with its number; and where it begins."""


def request_name(attempt: int, global_rank: int) -> str:
    """The request's file, inside the run's socket folder."""
    return f"request-{attempt}-{global_rank}"


def answer_name(attempt: int, global_rank: int) -> str:
    """The answer's, likewise."""
    return f"answer-{attempt}-{global_rank}"


def stop_name(attempt: int, global_rank: int) -> str:
    """By which one that goes on is asked to end now, and to answer: its number, and its kind."""
    return f"stop-{attempt}-{global_rank}"


def profile_name(attempt: int, global_rank: int) -> str:
    """What torch's profiler has written, before the supervisor takes it away."""
    return f"profile-{attempt}-{global_rank}.json"


def snapshot_name(attempt: int, global_rank: int) -> str:
    """The snapshot of its device's allocator, likewise: a pickle, which nothing of ours opens."""
    return f"snapshot-{attempt}-{global_rank}.pickle"


def max_bytes(what: str) -> int:
    """How long the answer to a request of this kind may be."""
    return MAX_TRACE_BYTES if what in ("modules", EVAL) else MAX_ANSWER_BYTES


def write_whole(path: str, what: dict[str, Any]) -> None:
    """Write a request or an answer, in place of the one before: a reader sees the old or the new. Raises OSError."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(json.dumps(what))
    os.replace(f"{path}.new", path)


def read_whole(path: str, number: int, limit: int) -> dict[str, Any]:
    """Read one. Raises OSError; ValueError where it is of another number, longer than limit (bytes), or none at all."""
    # What is no plain file is not waited for.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1) or b""
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ValueError(f"{path} is longer than {limit} bytes")
    try:
        what = json.loads(data)
    except RecursionError:
        raise ValueError(f"{path} nests without end") from None
    if not isinstance(what, dict) or what.get("number") != number:
        raise ValueError(f"{path} is not of request {number}")
    return what


def newest_ns(path: str) -> int:
    """When the file, or the newest one in the folder, was written. Raises OSError."""
    if not os.path.isdir(path):
        return os.stat(path).st_mtime_ns
    times = [0]
    for folder, _, names in os.walk(path):
        times += [os.stat(os.path.join(folder, name)).st_mtime_ns for name in names[:MAX_FILES]]
        if len(times) > MAX_FILES:
            break
    return max(times)
