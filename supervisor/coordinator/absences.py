"""A node that was refused before it joined leaves word of it: else the head would wait for it in vain.

`.join-KEY.absent-NODE` beside the join file, the user's alone like that. The head takes it away as it reads it, the
node itself when it is started again. How old it may be: as in refused.py, the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from guardrun.supervisor.coordinator.joinfile import JoinError, NotThere, join_file_path, read_own, replace_own, safe
from guardrun.supervisor.coordinator.refused import MAX_TEXT_CHARS, STALE_S, Began, began, holds
from guardrun.supervisor.core.events import NodeAbsent
from guardrun.supervisor.core.machine import Phase
from guardrun.supervisor.log import log
from guardrun.supervisor.printable import encode_json

if TYPE_CHECKING:
    from guardrun.supervisor.daemon import Daemon
    from guardrun.supervisor.rundir import FleetFile

SCHEMA = 1
EVERY_S = 2.0
MAX_HEEDED = 64
"""At a time: each is a file to be read."""


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node does not take part."""

    schema: int = SCHEMA
    key: str
    """The job's, as in FleetFile."""
    node: str
    slot: int = -1
    """Its place in the job; -1: none."""
    names: list[str] = []
    """By which it knows the head, where each host may have one for this key."""
    text: str
    """For a person: what guardrun said there."""
    exit_code: int
    is_final: bool
    """Nobody is there to start it again: a scheduler did."""
    said_wall_s: float


def absence_path(join: Path, key: str, node: str) -> Path:
    """join: the join file's place, or a pattern of places."""
    base = join_file_path(join.parent, key)
    return base.with_name(f"{base.name}.absent-{safe(node)}")


def leave_absence(join: Path, absence: Absence) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    absence = msgspec.structs.replace(absence, text=absence.text[:MAX_TEXT_CHARS])
    replace_own(absence_path(join, absence.key, absence.node), encode_json(absence))


def take_back_absence(join: Path, key: str, node: str) -> None:
    """The node is started again: what was said is over."""
    with suppress(OSError, JoinError):
        path = absence_path(join, key, node)
        read_own(path)
        path.unlink(missing_ok=True)


def heed_absences(join: Path, key: str, names: Collection[str], head: Began, now_wall_s: float) -> list[Absence]:
    """What nodes of this job have said, and that holds: each once. names: the head's; empty: it is the only one.

    Blocks as the folder does; raises OSError.
    """
    pattern = absence_path(join, key, "").name
    heeded: list[Absence] = []
    for path in sorted(join.parent.glob(f"{pattern}*"))[:MAX_HEEDED]:
        absence = _read(path)
        if absence is None or absence.key != key or (names and set(names).isdisjoint(absence.names)):
            continue
        is_old = absence.said_wall_s < head.started_s - STALE_S
        if not is_old and not holds(absence.said_wall_s, head, now_wall_s):
            continue
        path.unlink(missing_ok=True)
        if not is_old:
            heeded.append(absence)
    return heeded


def _read(path: Path) -> Absence | None:
    """None where there is none, or none that may be believed."""
    with suppress(NotThere, JoinError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        absence = msgspec.json.decode(read_own(path), type=Absence)
        return absence if absence.schema == SCHEMA and 0 < absence.exit_code < 256 else None
    return None


class Absences:
    """The head's look at them, while it waits for nodes; by a worker thread."""

    def __init__(self, daemon: Daemon, fleet: FleetFile) -> None:
        self._daemon, self._fleet = daemon, fleet
        # A run that is continued was created long before this start of its guardrun.
        self._began = began(daemon.run_file.launcher_start, time.time())
        self._due_s = 0.0
        self._is_looking = False

    def poll(self) -> None:
        """Once a second, by the loop."""
        is_due = time.monotonic() >= self._due_s and not self._is_looking
        if not is_due or self._fleet.meet is not None or self._daemon.engine.state.phase is not Phase.GATHERING:
            return
        self._is_looking = True
        try:
            self._daemon.pool.submit(self._look)
        except RuntimeError:
            pass  # the daemon is closing

    def _look(self) -> None:
        fleet, heeded = self._fleet, []
        try:
            heeded = heed_absences(Path(fleet.join_file), fleet.key, fleet.names, self._began, time.time())
        except OSError as error:
            log.info("absences_not_read", error=str(error))
        finally:
            self._daemon.post(lambda: self._tell(heeded))

    def _tell(self, heeded: list[Absence]) -> None:
        self._due_s, self._is_looking = time.monotonic() + EVERY_S, False
        for one in heeded:
            absent = NodeAbsent(
                node=one.node, slot=one.slot, why=one.text, exit_code=one.exit_code, is_final=one.is_final
            )
            self._daemon.handle(absent)
