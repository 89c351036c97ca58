"""Rank 0 writes so many blocks of so many bytes to its stderr, and notes when it began and ended."""

import os
import sys

from benchmarks.scripts.moments import note

blocks, size = int(sys.argv[1]), int(sys.argv[2])
if os.environ["RANK"] == "0":
    block = b"." * (size - 1) + b"\n"
    note("began")
    for _ in range(blocks):
        left = block
        while left:
            left = left[os.write(2, left) :]
    note("ended")
