"""Scripts of daily life under torchrun and guardrun: `make gym-life`, `make gym-night`. See lives.py."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# In place of this folder, whose modules must be found as `benchmarks.…` only.
sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from benchmarks.gym.lives import main  # noqa: E402

if __name__ == "__main__":
    # Leave through every `finally`, so that no rank is left behind.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    sys.exit(main())
