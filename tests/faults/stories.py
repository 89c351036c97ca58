"""The stories that most rows share: what a training goes through around a fault."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.bed import Bed
from tests.faults.row import BedFault, Preparation, nothing


def _no_preparation(bed: Bed) -> None:
    pass


@dataclass(frozen=True)
class Unfelt:
    """No rank notices; what comes afterwards is found all the same."""

    fault: BedFault = nothing
    prepare: Preparation = _no_preparation
    holds = "one attempt until a rank is killed afterwards: that is told, and mended from the newest checkpoint; exit 0"

    def __call__(self, bed: Bed) -> str:
        self.prepare(bed)
        bed.start()
        bed.trains()
        seen = self.fault(bed)
        bed.trains()
        assert len(bed.begun) == 1, bed.entries()
        bed.hurt()
        bed.mended()
        bed.trains()
        bed.ends(attempts=2)
        return seen


@dataclass(frozen=True)
class Unrecorded:
    """Likewise, where the record suffers: the restart is asked for, not what is written of it."""

    fault: BedFault = nothing
    prepare: Preparation = _no_preparation
    holds = "one attempt until a rank is killed afterwards: the next begins with the newest checkpoint; exit 0"

    def __call__(self, bed: Bed) -> str:
        bed.is_recorded = False
        self.prepare(bed)
        bed.start()
        bed.trains()
        seen = self.fault(bed)
        bed.trains()
        assert len(bed.begun) == 1, bed.entries()
        bed.restarted()
        bed.trains()
        bed.ends(attempts=2)
        return seen


@dataclass(frozen=True)
class Mended:
    """A fault while another is being dealt with."""

    fault: BedFault
    prepare: Preparation = _no_preparation
    when: str = "kill"
    cause: str = "killed"
    arguments: tuple[str, ...] = ()
    holds = "one incident, with the rank that caused it; one restart, from the newest checkpoint; exit 0"

    def __call__(self, bed: Bed) -> str:
        self.prepare(bed)
        bed.start(*self.arguments, when=self.when)
        bed.trains()
        bed.hurt()
        seen = self.fault(bed)
        bed.mended(self.cause)
        bed.trains()
        bed.ends(attempts=2)
        return seen


@dataclass(frozen=True)
class Continued:
    """The run ends with the fault; the same command goes on with it."""

    fault: BedFault
    prepare: Preparation = _no_preparation
    arguments: tuple[str, ...] = ()
    is_replayed: bool = True
    """The journal is left whole."""
    holds = "nothing is left running; the same command goes on from the newest checkpoint, and ends with 0"

    def __call__(self, bed: Bed) -> str:
        bed.is_recorded = self.is_replayed
        self.prepare(bed)
        bed.start(*self.arguments)
        bed.trains()
        seen = self.fault(bed)
        bed.is_gone()
        attempts, newest = len(bed.begun), bed.saved
        bed.start()
        bed.trains()
        assert len(bed.begun) == attempts + 1 and bed.begun[-1] >= newest > 0, bed.entries()
        bed.ends(attempts=attempts + 1)
        return seen
