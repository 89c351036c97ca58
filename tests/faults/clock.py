"""Faults of the clock: the wall's is set, and time that passes while nothing, or not everything, runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.bed import Bed, send, stop
from tests.faults.row import Row
from tests.faults.stories import Continued, Unfelt
from tests.runs.runs import QUICK
from tests.support.processes import Process, read_process
from tests.support.wallclock import WallClock

HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S
LONG_S = 8.0
"""Longer than any patience of QUICK's."""


def quick(bed: Bed) -> None:
    bed.config += QUICK


@dataclass(frozen=True)
class Set:
    """The wall's clock differs by these in turn, each for a while."""

    by_s: tuple[int, ...]
    then: Callable[[Bed], None] | None = None
    is_over: bool = False
    """The run is, with what comes then."""
    holds = Unfelt.holds

    def __call__(self, bed: Bed) -> str:
        clock = WallClock(bed.folder)
        bed.env |= clock.environment

        def fault(bed: Bed) -> str:
            for by_s in self.by_s:
                clock.set(by_s)
                bed.trains()
            if self.then is not None:
                self.then(bed)
            return ""

        return (Continued(fault) if self.is_over else Unfelt(fault))(bed)


@dataclass(frozen=True)
class SetAndContinued(Set):
    is_over: bool = True
    holds = Continued.holds


def kill_supervisor(bed: Bed) -> None:
    old = bed.supervisor()
    send(old, signal.SIGKILL)
    bed.another(old)


def kill_all(bed: Bed) -> None:
    bed.run.close()


def guardruns(bed: Bed) -> list[Process]:
    """The launcher and the supervisor."""
    launcher = read_process(bed.run.pid)
    assert launcher is not None
    return [launcher, bed.supervisor()]


def freeze_all(bed: Bed) -> str:
    """As `scontrol suspend` does, and a machine that is paused."""
    stop(bed.run.alive(), LONG_S)
    return ""


def freeze_guardrun(bed: Bed) -> str:
    stop(guardruns(bed), LONG_S)
    return ""


def freeze_all_twice(bed: Bed) -> str:
    for _ in range(2):
        stop(bed.run.alive(), LONG_S / 2)
        bed.trains()
    return ""


CC = ("cc",)
ROWS = (
    Row("clock", "set back by an hour", "in training", Set((-HOUR_S,)), CC),
    Row("clock", "set forward by an hour", "in training", Set((HOUR_S,)), CC),
    Row("clock", "set forward by ten years", "in training", Set((10 * YEAR_S,)), CC),
    Row("clock", "set back by forty years", "in training", Set((-40 * YEAR_S,)), CC),
    Row("clock", "to and fro by an hour", "in training", Set((-HOUR_S, HOUR_S, -HOUR_S, 0)), CC),
    Row("clock", "set back by an hour, and the supervisor killed", "in training", Set((-HOUR_S,), kill_supervisor), CC),
    Row(
        "clock",
        "set back by an hour, and everything killed",
        "in training; the same command again",
        SetAndContinued((-HOUR_S,), kill_all),
        CC,
    ),
    Row("clock", "nothing of the run runs for 8 s", "in training", Unfelt(freeze_all, quick), is_sample=True),
    Row("clock", "nothing of the run runs for 4 s, twice", "in training", Unfelt(freeze_all_twice, quick)),
    Row("clock", "nothing of guardrun runs for 8 s", "in training", Unfelt(freeze_guardrun, quick)),
)
