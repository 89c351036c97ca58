"""Standard input, output and error where whoever started us had closed them (`>&-`, some schedulers and daemons)."""

from __future__ import annotations

import os


def hold_standard_descriptors() -> None:
    """Put /dev/null in the place of closed ones, so that no socket of ours gets their numbers, and others' words.

    They are closed again for what we start (O_CLOEXEC): programs see what they would have seen without us.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # The lowest free number: this one.
