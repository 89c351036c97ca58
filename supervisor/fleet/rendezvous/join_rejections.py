"""A node that was refused before it joined leaves word of it: else the head would wait for it in vain.

`.join-KEY.absent-NODE` beside the join file, the user's alone like that. The head takes it away as it reads it, the
node itself when it is started again. How long it holds: start_failure_files.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.model.events import NodeAbsent
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.fleet.rendezvous.join_file import join_file_path, safe
from guardrun.supervisor.fleet.rendezvous.start_failure_files import (
    STALE_S,
    Began,
    Said,
    began,
    holds,
    read_said,
    take_back_said,
    write_said,
)

if TYPE_CHECKING:
    from guardrun.supervisor.node.run_context import DecidingContext, LoopContext
    from guardrun.supervisor.rundir.run_directory import FleetFile

EVERY_S = 2.0
MAX_HEEDED = 64
"""At a time: each is a file to be read."""


class JoinRejection(Said, frozen=True, kw_only=True):
    """Why a node does not take part. names: those by which it knows the head."""

    node: str
    slot: int = -1
    """Its place in the job; -1: none."""
    is_final: bool
    """Nobody is there to start it again: a scheduler did."""


def absence_path(join: Path, key: str, node: str) -> Path:
    """join: the join file's place, or a pattern of places."""
    base = join_file_path(join.parent, key)
    return base.with_name(f"{base.name}.absent-{safe(node)}")


def leave_absence(join: Path, absence: JoinRejection) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    write_said(absence_path(join, absence.key, absence.node), absence)


def take_back_absence(join: Path, key: str, node: str) -> None:
    """The node is started again: what was said is over."""
    take_back_said(absence_path(join, key, node))


def heed_absences(join: Path, key: str, names: Collection[str], head: Began, now_wall_s: float) -> list[JoinRejection]:
    """What nodes of this job have said, and that holds: each once. names: the head's; empty: it is the only one.

    Blocks as the folder does; raises OSError.
    """
    pattern = absence_path(join, key, "").name
    heeded: list[JoinRejection] = []
    for path in sorted(join.parent.glob(f"{pattern}*"))[:MAX_HEEDED]:
        absence = read_said(path, JoinRejection)
        if absence is None or absence.key != key or (names and set(names).isdisjoint(absence.names)):
            continue
        is_old = absence.said_wall_s < head.started_s - STALE_S
        if not is_old and not holds(absence.said_wall_s, head, now_wall_s):
            continue
        path.unlink(missing_ok=True)
        if not is_old:
            heeded.append(absence)
    return heeded


class JoinRejections:
    """The head's look at them, while it waits for nodes; by a worker thread."""

    def __init__(self, node: LoopContext, context: DecidingContext, fleet: FleetFile) -> None:
        self._node, self._context, self._fleet = node, context, fleet
        # A run that is continued was created long before this start of its guardrun.
        self._began = began(node.run_file.launcher_start, time.time())
        self._due_s = 0.0
        """Never while a look is under way."""

    def poll(self) -> None:
        """Once a second, by the loop."""
        is_waiting = self._fleet.meet is None and self._context.engine.state.phase is Phase.GATHERING
        if not is_waiting or time.monotonic() < self._due_s:
            return
        self._due_s = inf
        try:
            self._node.pool.submit(self._look)
        except RuntimeError:
            pass  # the daemon is closing

    def _look(self) -> None:
        fleet, heeded = self._fleet, []
        try:
            heeded = heed_absences(Path(fleet.join_file), fleet.key, fleet.names, self._began, time.time())
        except OSError as error:
            log.info("absences_not_read", error=str(error))
        finally:
            self._node.post(lambda: self._tell(heeded))

    def _tell(self, heeded: list[JoinRejection]) -> None:
        self._due_s = time.monotonic() + EVERY_S
        for one in heeded:
            absent = NodeAbsent(
                node=one.node, slot=one.slot, why=one.text, exit_code=one.exit_code, is_final=one.is_final
            )
            self._context.handle(absent)
