"""A job on several nodes, one of which lacks a module that the script imports."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.wire.board import Milestone
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

MISSING = ev.ErrorRecord(error="ModuleNotFoundError", message="No module named 'apex'")
IMPORTED = int(Milestone.HOOKED | Milestone.TORCH_IMPORTED)
WAITS = IMPORTED | int(Milestone.INIT_ENTERED)


def started(told: Told, spares: int = 1, **settings: Any) -> None:
    """n0 (ranks 0, 1), n1 (ranks 2, 3), and spares."""
    told.fleet_opened(2, spares, **settings)
    told.fleet_started(1.0)


def fails(told: Told, rank: int, milestones: dict[int, int], error: ev.ErrorRecord = MISSING) -> list[ac.Action]:
    """A rank's import fails; how far the others have got by the time that they are ended is told as they end."""
    told.tell(ev.UncaughtExceptionReported(attempt=told.attempt, global_rank=rank, error=error))
    told.exits(rank, 1, told.now_s + 0.2)
    told.tick()
    told.read(told.now_s + 0.1)
    reports = [ev.RankReport(global_rank=number, milestones=bits) for number, bits in milestones.items()]
    told.tell(ev.NodeReport(node="n0", attempt=told.attempt, ranks=reports), told.now_s + 0.1)
    return told.stopped(told.now_s + 0.5)


def again(told: Told) -> None:
    """The next attempt starts."""
    told.chosen()
    told.fleet_started(told.now_s + 1.0)
