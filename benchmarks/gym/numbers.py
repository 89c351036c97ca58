"""Trainings whose numbers go wrong, and others that only look so: `make gym-numbers`.

Ends with 0 where every fault was found with the right cause, rank and step, and no decoy was reported.
"""

from __future__ import annotations

import sys
from pathlib import Path

# In place of this folder, whose modules must be found as `benchmarks.…` only.
sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from benchmarks.gym.numeric.suite import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
