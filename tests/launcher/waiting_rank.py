"""A rank that waits until the file `go` is there."""

from __future__ import annotations

from pathlib import Path

from tests.support.waiting import wait_until

WAIT = """
import os, pathlib, signal, sys, time
{before}
pathlib.Path(f"ready-{{os.environ['TORCHELASTIC_RESTART_COUNT']}}-{{os.environ['RANK']}}").write_text(str(os.getpid()))
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def ready(folder: Path, attempt: int, rank: int) -> int:
    """Wait for a rank of WAIT; its pid."""
    path = folder / f"ready-{attempt}-{rank}"
    return int(wait_until(lambda: path.exists() and path.read_text(), 30, f"{path} to be written"))
