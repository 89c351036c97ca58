"""What a fatal signal leaves: the stack of the thread that it met."""

from __future__ import annotations

import pytest

from guardrun.supervisor.collect.ranks.stack_dumps import parse_fatal

SEGFAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f2 (most recent call first):
  File "/home/me/loader.py", line 5 in prefetch

Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line 6 in crash_here
  File "/home/me/train.py", line 11 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
"""
ABORT = """Fatal Python error: Aborted

Current thread 0x00007f9 (most recent call first):
  <no Python frame>

Thread 0x00007f1 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_gather
  File "/home/me/train.py", line 30 in <module>
"""


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        (SEGFAULT, ["string_at", "crash_here", "<module>"]),
        (ABORT, ["all_gather", "<module>"]),
        (ABORT + SEGFAULT, ["string_at", "crash_here", "<module>"]),
        (SEGFAULT[:40], []),
        ("", []),
        ("\x00\ufffd" * 50, []),
    ],
    ids=["the thread it met", "no Python there", "the last of two", "torn", "empty", "not text"],
)
def test_the_stack_of_the_thread_that_it_met(text: str, functions: list[str]) -> None:
    assert [frame.function for frame in parse_fatal(text)] == functions
