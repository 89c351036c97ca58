"""What a rank's device has room for, beside what stays in it from step to step."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.engine.model.events import DeviceMemory


class StepNeed(msgspec.Struct, array_like=True):
    """How much a rank's steps allocate for a while, beyond what is left once they are done: activations, mostly.

    torch keeps the highest peak since the script last reset it. One that has changed since the last reading is of the
    steps between the two; one that hasn't may be of the start, which often needs more than a step does.
    """

    peak: int = -1
    """As it was last; -1: nothing was read."""
    most: int = 0
    """Bytes, of all steps that have shown it; evaluations with larger ones come again."""
    doubt: int = 0
    """Bytes that a step may need beyond that, for all that is known."""

    def add(self, use: DeviceMemory) -> None:
        """Take a reading in."""
        beyond = max(0, use.peak - use.allocated)
        if self.peak not in (-1, use.peak):
            self.most = max(self.most, beyond)
        self.peak = use.peak
        self.doubt = 0 if self.most else beyond


def pool_of(node: str, rank: int, use: DeviceMemory) -> str:
    """The name of the memory that a rank has part in: its device's, or its own where nothing tells which that is."""
    return f"{node} {use.device:08x}" if use.device else f"{node} rank {rank}"
