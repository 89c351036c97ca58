"""Variables of a rank's environment that name the checkpoint to resume from; scripts may read them, too."""

from __future__ import annotations

RESUME_FROM, RESUME_STEP = "GUARDRUN_RESUME_FROM", "GUARDRUN_RESUME_STEP"
