"""Rank 0 writes so many blocks of so many bytes to its stderr, and notes when it began and ended.

Also between which moments a single block took longest.
"""

import os
import sys
import time

from benchmarks.scripts.moments import note

blocks, size = int(sys.argv[1]), int(sys.argv[2])
if os.environ["RANK"] == "0":
    block = b"." * (size - 1) + b"\n"
    longest = (0, 0)
    note("began")
    before_ns = time.monotonic_ns()
    for _ in range(blocks):
        left = block
        while left:
            left = left[os.write(2, left) :]
        now_ns = time.monotonic_ns()
        if now_ns - before_ns > longest[1] - longest[0]:
            longest = (before_ns, now_ns)
        before_ns = now_ns
    note("ended")
    note("longest from", longest[0])
    note("longest until", longest[1])
