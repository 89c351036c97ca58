"""Processes that are watched and signalled: with pidfds, and where the kernel gives none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import seccomp

STORY = """
import signal, subprocess, sys, time
from guardrun.launcher.base.processes import ProcessHandle, send_signal, wait_for_end
from guardrun.launcher.base.processes import read_stat

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
start = read_stat(child.pid).start
with ProcessHandle(child.pid, start) as handle:
    print("watched", handle.fileno is not None, handle.has_ended())
    wait_for_end([(child.pid, start)], 0.1)
    for mistaken in (start + 1, start - 1):
        try:
            send_signal(child.pid, mistaken, signal.SIGKILL)
        except ProcessLookupError:
            print("another process", child.poll())
    handle.send(signal.SIGKILL)
    began = time.monotonic()
    wait_for_end([(child.pid, start), (child.pid, None)], 60)
    print("ended", time.monotonic() - began < 30, handle.has_ended())
child.wait()
try:
    ProcessHandle(child.pid, start)
except ProcessLookupError:
    print("gone")
"""


@pytest.mark.parametrize(
    ("calls", "code", "is_watched"),
    [
        ("clone3", "ENOSYS", True),
        ("pidfd_open", "EPERM", False),
        ("pidfd_open", "ENOSYS", False),
        ("pidfd_send_signal", "EPERM", True),
        ("pidfd_open,pidfd_send_signal", "ENOSYS", False),
    ],
)
def test_the_process_that_is_meant_and_no_other(tmp_path: Path, calls: str, code: str, is_watched: bool) -> None:
    (tmp_path / "story.py").write_text(STORY)
    command = [sys.executable, seccomp.__file__, calls, code, str(tmp_path / "story.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        f"watched {is_watched} False",
        "another process None",
        "another process None",
        "ended True True",
        "gone",
    ], done.stderr
