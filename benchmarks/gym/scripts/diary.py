"""The training script's own log: one line of JSON for each thing reached, in one write, with the wall clock's time."""

from __future__ import annotations

import json
import os
import time

RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def note(what: str, step: int = 0) -> None:
    """Write to this rank's file."""
    line = {"what": what, "step": step, "at": time.time(), "attempt": ATTEMPT, "rank": RANK, "pid": os.getpid()}
    fd = os.open(f"{os.environ['GYM_LOG']}/rank-{RANK}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, (json.dumps(line) + "\n").encode())
    finally:
        os.close(fd)
