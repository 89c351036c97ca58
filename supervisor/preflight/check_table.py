"""All quick checks, in the order in which they are shown."""

from __future__ import annotations

from guardrun.supervisor.preflight.base.remark import Check
from guardrun.supervisor.preflight.checks import (
    clock,
    folders,
    gpus,
    interfaces,
    libraries,
    limits,
    ports,
    quarantined,
    shm,
    versions,
)

QUICK: tuple[Check, ...] = (
    quarantined.CHECK,
    gpus.CHECK,
    versions.CHECK,
    libraries.CHECK,
    interfaces.CHECK,
    ports.CHECK,
    limits.CHECK,
    shm.CHECK,
    folders.CHECK,
    clock.CHECK,
)
