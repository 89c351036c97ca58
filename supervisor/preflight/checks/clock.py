"""Is the wall clock right? Logs of several nodes, certificates and quarantine go by it."""

from __future__ import annotations

import time

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, note, ok, warn
from guardrun.supervisor.sensors.host.clock import Discipline, read_discipline

NAME = "clock"
EARLIEST_WALL_S = 1_704_067_200.0
"""2024-01-01: before anything of guardrun was."""
WORST_ERROR_S = 1.0


def judge(wall_s: float, discipline: Discipline | None, trouble: str = "") -> Remark:
    """Whether the clock can be trusted. discipline: None where the kernel may not be asked; trouble says why."""
    if wall_s < EARLIEST_WALL_S:
        day = time.strftime("%Y-%m-%d", time.gmtime(wall_s))
        return warn(NAME, f"The clock says {day}.", "Set it: chronyc makestep, or timedatectl set-ntp true.")
    if discipline is None:
        return note(NAME, f"Whether the clock is kept right cannot be told ({trouble}).")
    if not discipline.is_synchronized:
        return note(
            NAME,
            "Nothing keeps the clock right: times of several nodes will not fit together.",
            "Start a time service (chronyd, systemd-timesyncd); in a container the host's does.",
        )
    if discipline.max_error_s > WORST_ERROR_S:
        return note(NAME, f"The clock may be off by {discipline.max_error_s:.1f} s.", "Look at chronyc tracking.")
    return ok(NAME, "The clock is kept right.", max_error_s=round(discipline.max_error_s, 4))


def run(subject: Subject) -> list[Remark]:
    """One remark; where adjtimex(2) is forbidden it is a note."""
    try:
        return [judge(time.time(), read_discipline())]
    except OSError as error:
        return [judge(time.time(), None, f"adjtimex: {error.strerror}")]


CHECK = Check(NAME, run)
