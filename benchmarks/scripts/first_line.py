"""Notes its first line; with --torch the first one after `import torch`.

With --stay it then lives until it is ended.
"""

import time

first_ns = time.monotonic_ns()

import sys  # noqa: E402

if "--torch" in sys.argv:
    import torch  # noqa: F401

    first_ns = time.monotonic_ns()

from benchmarks.scripts.moments import note  # noqa: E402

note("first", first_ns)
if "--stay" in sys.argv:
    time.sleep(3600)
