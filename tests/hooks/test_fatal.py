"""faulthandler's two jobs in a rank: no signal of ours can end it, and a fatal one of its own leaves its place."""

from __future__ import annotations

import signal

import pytest

from guardrun.supervisor.collect.ranks.stack_dumps import parse_fatal
from tests.hooks.bed import Bed


def test_a_late_dump_signal_ends_nobody(bed: Bed) -> None:
    """A finalising interpreter takes faulthandler's handlers back, as unregister does: what is left must do no harm."""
    code = """
import faulthandler, os, signal
signum = int(signal.SIGRTMAX) - 2
assert faulthandler.unregister(signum)
os.kill(os.getpid(), signum)
print('trained')
"""
    done = bed.run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_fatal_signal_leaves_the_line_and_the_exit_code(bed: Bed, name: str) -> None:
    # As a fault is: to the thread itself. What is sent to the process may be taken by the hooks' thread as it starts.
    code = f"import signal\n\ndef crash_here():\n    signal.raise_signal(signal.{name})\ncrash_here()\n"
    done = bed.run(code)
    assert done.returncode == -getattr(signal, name)
    assert done.stderr == "", "nothing that the script would not print by itself"
    stack = parse_fatal((bed.sockets / "fatal-0-0").read_text())
    assert [(frame.function, frame.line) for frame in stack] == [("crash_here", 4), ("<module>", 5)]


def test_a_scripts_own_faulthandler_takes_over(bed: Bed) -> None:
    done = bed.run("import faulthandler, os\nfaulthandler.enable()\nos.abort()\n")
    assert done.stderr.startswith("Fatal Python error: Aborted")
    assert (bed.sockets / "fatal-0-0").read_text() == ""
    assert bed.run("import os\nos.abort()\n", PYTHONFAULTHANDLER="1").stderr.startswith("Fatal Python error")
