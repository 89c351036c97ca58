"""Who holds a device's memory and has no business there. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from guardrun.supervisor.health.base.memory_holders import parse_holders
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.gpu.gpu_inventory import GpuBook


class Stranger(NamedTuple):
    """A process that holds memory of a GPU."""

    subject: str
    label: str
    """`GPU 1`."""
    pid: int
    used_bytes: int | None
    """None: the driver does not say."""


def strangers(readout: Readout, own: Collection[int]) -> list[Stranger]:
    """Processes, other than own, that hold GPU memory by this readout.

    Empty where it does not tell (`holders` Unknown, or not of this turn), and where pids cannot be seen from here.
    """
    book = GpuBook()
    found: list[Stranger] = []
    for subject, values in book.take(readout).items():
        held = values.get("holders")
        for pid, used in parse_holders(held).items() if isinstance(held, str) else ():
            if pid not in own:
                found.append(Stranger(subject, book.label(subject), pid, used))
    return found
