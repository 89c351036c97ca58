"""An exception as a rank's hooks leave it in a file."""

from __future__ import annotations

from guardrun.hooks.wire.messages import UncaughtException

TRACEBACK = """Traceback (most recent call last):
  File "/x/old.py", line 1, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    main()
  File "/x/train.py", line 5, in main
    raise ValueError("bad: value")
ValueError: bad: value
"""
FRAMES = [("/x/train.py", "<module>", 9), ("/x/train.py", "main", 5)]
RAISED = UncaughtException(
    attempt=0,
    global_rank=1,
    pid=7,
    at_ns=int(3.5e9),
    error="torch.OutOfMemoryError",
    message="no room",
    traceback=TRACEBACK,
    frames=FRAMES,
)
