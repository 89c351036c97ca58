"""How guardrun ends where it starts nothing."""

from __future__ import annotations

USAGE_ERROR = 2
INTERRUPTED = 130
QUARANTINED = 69
"""guardrun's exit status on a quarantined node: EX_UNAVAILABLE of sysexits.h."""
NOT_FIT = 71
"""Where the pre-flight found what no run can get past: EX_OSERR."""


class RefusedError(Exception):
    """No run starts here; says why, and the ways out."""

    def __init__(self, text: str, exit_status: int) -> None:
        super().__init__(text)
        self.exit_status = exit_status
