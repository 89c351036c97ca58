"""guardrun beside torchrun, in figures: `make bench`.

    python benchmarks/run.py                  all of it, 8 minutes on 2 cores; a table, and build/bench.json
    python benchmarks/run.py --quick          does every measurement work? 2 minutes
    python benchmarks/run.py --full           also hangs that guardrun is patient with for minutes
    python benchmarks/run.py --only startup   one item (several: --only startup --only kill)
    python benchmarks/run.py --write-docs     also puts the table into docs/benchmarks.md

Ends with 0 where everything could be measured, whether or not the targets are met; with 1 where something could not.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# In place of this folder, whose modules must be found as `benchmarks.…` only.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.suite import main  # noqa: E402

if __name__ == "__main__":
    # Leave through every `with`, so that no rank is left behind.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    sys.exit(main())
