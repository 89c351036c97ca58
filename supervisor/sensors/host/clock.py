"""The wall clock: whether something keeps it right, how far off it is, and whether it jumped."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Happening, Readout, Sample
from guardrun.supervisor.sensors.base.sensor import happened, known, unknown

STEP_S = 0.5
"""Beyond this between two turns, the clock was set: adjtime's fastest slewing is 0.5 ms a second (adjtimex(2))."""
TIMESYNC = "/run/systemd/timesync/synchronized"
"""Is there once systemd-timesyncd has set the clock (systemd-timesyncd.service(8)); others leave no such sign."""
_STA_UNSYNC = 0x40  # linux: include/uapi/linux/timex.h
_STA_NANO = 0x2000
_ABSURD_S = 1e9


class _Timeval(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_usec", ctypes.c_long))


class _Timex(ctypes.Structure):
    """struct timex (adjtimex(2))."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", _Timeval),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


class Discipline(NamedTuple):
    """What the kernel knows of its clock."""

    is_synchronized: bool
    offset_s: float
    """Between the clock and what disciplines it, as that last said."""
    max_error_s: float


class Clocks(NamedTuple):
    """Two clocks at one moment."""

    wall_s: float
    boot_s: float
    """CLOCK_BOOTTIME, which nobody can set; like the wall clock it goes on while the machine is suspended."""


def read_clocks() -> Clocks:
    """Both clocks, as near to each other as they can be read."""
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    wall_s = time.clock_gettime(time.CLOCK_REALTIME)
    return Clocks(wall_s, (before_s + time.clock_gettime(time.CLOCK_BOOTTIME)) / 2)


def read_discipline() -> Discipline:
    """The kernel's view (adjtimex(2), changing nothing). Raises OSError where that is forbidden."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    unit = 1e9 if timex.status & _STA_NANO else 1e6
    return Discipline(not timex.status & _STA_UNSYNC, timex.offset / unit, timex.maxerror / 1e6)


def step_between(before: Clocks, after: Clocks) -> float:
    """By how many seconds the wall clock was set between the two, forward or (negative) back; 0 where it was not."""
    step_s = (after.wall_s - before.wall_s) - (after.boot_s - before.boot_s)
    elapsed_s = max(0.0, after.boot_s - before.boot_s)
    return step_s if abs(step_s) > STEP_S + elapsed_s * 0.0005 else 0.0


class ClockSensor:
    """`clock`."""

    name = "clock"
    period_s = 10.0
    timeout_s = 5.0

    def __init__(
        self,
        clocks: Callable[[], Clocks] = read_clocks,
        discipline: Callable[[], Discipline] = read_discipline,
        timesync: str = TIMESYNC,
    ) -> None:
        self._timesync = timesync
        self._clocks = clocks
        self._discipline = discipline
        self._before: Clocks | None = None

    def read(self, now_s: float) -> Readout:
        """From adjtimex(2), or timesyncd's file where that is forbidden; `clock_step` where the wall clock jumped."""
        clocks = self._clocks()
        happenings = self._steps(clocks, now_s)
        self._before = clocks
        try:
            samples = of_discipline(self._discipline())
        except OSError as error:
            # systemd's ProtectClock= forbids even asking.
            why = f"adjtimex: {error.strerror}"
            is_kept = os.path.exists(self._timesync)
            samples = unknown("clock", ("offset_s",) if is_kept else ("is_synchronized", "offset_s"), why)
            samples += known("clock", is_synchronized=True) if is_kept else []
        return Readout(sensor=self.name, at_s=now_s, samples=samples, happenings=happenings)

    def _steps(self, clocks: Clocks, now_s: float) -> list[Happening]:
        step_s = step_between(self._before, clocks) if self._before is not None else 0.0
        if not step_s:
            return []
        way = "forward" if step_s > 0 else "back"
        text = f"the wall clock was set {way} by {abs(step_s):.1f} s"
        return [happened("clock", "clock_step", now_s, text, step_s=round(step_s, 3))]

    def close(self) -> None:
        """Nothing is held."""


def of_discipline(discipline: Discipline) -> list[Sample]:
    """Samples; an offset that cannot be one is unknown."""
    samples = known("clock", is_synchronized=discipline.is_synchronized)
    for name, value in (("offset_s", discipline.offset_s), ("max_error_s", discipline.max_error_s)):
        if abs(value) < _ABSURD_S:
            samples += known("clock", **{name: value})
        else:
            samples += unknown("clock", (name,), f"the kernel says {value:g} s")
    return samples
