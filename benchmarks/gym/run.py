"""Faults and decoys under guardrun, torchrun and NVIDIA's ft_launcher: `make gym`.

    python benchmarks/gym/run.py                         all of it, once; goes on where it was cut short
    python benchmarks/gym/run.py --only 'groups_*'       some cases
    python benchmarks/gym/run.py --launchers guardrun    without the others
    python benchmarks/gym/run.py --show --write-docs     the tables of what was played into docs/gym.md

Ends with 0 where every case could be played, whatever came of it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# In place of this folder, whose modules must be found as `benchmarks.…` only.
sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from benchmarks.gym.suite import main  # noqa: E402

if __name__ == "__main__":
    # Leave through every `finally`, so that no rank is left behind.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    sys.exit(main())
