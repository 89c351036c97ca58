"""What the engine derives from events for its detectors, beside PhaseChanged: facts that no single event tells."""

from __future__ import annotations

from typing import NamedTuple


class ExitBooked(NamedTuple):
    """A rank of the running attempt has ended, which was not known yet, and not because the job is about to end."""

    global_rank: int
    exitcode: int
    """As subprocess has it."""
    at_s: float
    """In the engine's seconds; not in the future, whatever the clock of the rank's node says."""


class ExitsExplained(NamedTuple):
    """Why ranks have fallen is known, and is no failure of theirs: a lost node, a signal to the job, a person."""


class TickBegan(NamedTuple):
    """Something is due, and nothing has been done about it yet: what stops an attempt comes before all else."""


class AttemptReplaced(NamedTuple):
    """torchrun's own agent has begun another attempt: the last that detectors see of the old one."""
