"""Files by which a guardrun that starts nothing tells those that wait for it.

A head that was refused leaves one, and so does a node that may not join.

The user's alone, beside the join file. Times are of two hosts' wall clocks. What was said after the reader's guardrun
was started holds at once. What was said within a minute before may be of the start before this one, which the user has
mended: it holds if it still stands when who said it, started together with the reader, would have taken it back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.engine.model.events import NodeAbsent
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.fleet.protocol.lease import boot_s
from guardrun.supervisor.fleet.rendezvous.join_file import (
    EVERY,
    REFUSED,
    JoinError,
    join_file_path,
    read_own,
    replace_own,
    safe,
)

if TYPE_CHECKING:
    from guardrun.supervisor.node.run_context import DecidingContext, LoopContext
    from guardrun.supervisor.rundir.run_directory import FleetFile


SCHEMA = 1
STALE_S = 60.0
"""Said so long before a node began: of an earlier start. Clocks may be apart by as much."""
RESTART_S = 15.0
"""How much later than a node, ready to join, another may have read its command line that was started with it."""
MAX_TEXT_CHARS = 4000


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Why a guardrun does not take part."""

    schema: int = SCHEMA
    key: str
    """The job's, as in FleetFile."""
    names: list[str] = []
    """The head's, where each host may have one for this key."""
    text: str
    """For a person: what guardrun said there."""
    exit_code: int
    said_wall_s: float


SaidT = TypeVar("SaidT", bound=Said)


def write_said(path: Path, said: Said) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    replace_own(path, encode_json(msgspec.structs.replace(said, text=said.text[:MAX_TEXT_CHARS])))


def take_back_said(path: Path) -> None:
    """What was said of an earlier start is over. What others have put there stays."""
    with suppress(OSError, JoinError):
        read_own(path)
        path.unlink(missing_ok=True)


def read_said(path: Path, kind: type[SaidT]) -> SaidT | None:
    """None where there is none, or none that may be believed."""
    try:
        said = msgspec.json.decode(read_own(path), type=known_type(kind))
    except (JoinError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return said if said.schema == SCHEMA and 0 < said.exit_code < 256 else None


class Began(NamedTuple):
    """A node's start, by its wall clock."""

    started_s: float
    """Of its guardrun's process."""
    ready_s: float
    """Torch was imported, the command line read: it looked for a head."""


def began(launcher_start: int, ready_wall_s: float) -> Began:
    """launcher_start: as the kernel has it, clock ticks since this host booted; 0: not known."""
    if not launcher_start:
        return Began(ready_wall_s, ready_wall_s)
    age_s = boot_s() - launcher_start / os.sysconf("SC_CLK_TCK")
    return Began(min(time.time() - age_s, ready_wall_s), ready_wall_s)


def holds(said_s: float, node: Began, now_wall_s: float, led_wall_s: float = 0.0) -> bool:
    """Whether a node goes by what was said then. led_wall_s: when a head wrote the join file; 0: none has."""
    if said_s <= led_wall_s or not node.started_s - STALE_S <= said_s <= now_wall_s + STALE_S:
        return False
    return said_s >= node.started_s or now_wall_s >= node.ready_s + RESTART_S


# Refused start ------------------------------------------------------------------------------------------------------
# A head that was refused before it opened a run leaves word of it: else the other nodes would wait for it in vain.
#
# Beside the join file, `.join-KEY.refused` or `.join-KEY@HOST.refused`, the user's alone like that. The join file
# itself is left as it is, as it may be a living head's. Whoever may lead takes the word back when it starts.
#
# Nodes that wait for their first head read it; how long it holds: start_failure_files.py.


class Refused(Said, frozen=True, kw_only=True):
    """Why no run was opened."""

    head: str
    """Its name as a node."""


def refused_path(join: Path) -> Path:
    """Where it lies. join: the join file's place, or a pattern of places."""
    return join.with_name(f"{join.name}{REFUSED}")


def leave_word(join: Path, refused: Refused) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    write_said(refused_path(join), refused)


def take_back(join: Path) -> None:
    """A head starts here, or is told that it may: what was said of an earlier start is over."""
    take_back_said(refused_path(join))


def find_refused(join: Path, names: Collection[str], key: str) -> Refused | None:
    """The newest that is about this job. join, names: as for find_join_file."""
    path = refused_path(join)
    places = path.parent.glob(path.name) if join.name.endswith(f"@{EVERY}") else [path]
    found = [one for place in places if (one := read_said(place, Refused)) is not None and one.key == key]
    if join.name.endswith(f"@{EVERY}"):
        found = [one for one in found if not set(names).isdisjoint(one.names)]
    return max(found, key=lambda one: one.said_wall_s, default=None)


def now_refused(key: str, head: str, names: Collection[str], text: str, exit_code: int) -> Refused:
    """Said now."""
    return Refused(key=key, head=head, names=list(names), text=text, exit_code=exit_code, said_wall_s=time.time())


# Join rejections ----------------------------------------------------------------------------------------------------
# A node that was refused before it joined leaves word of it: else the head would wait for it in vain.
#
# `.join-KEY.absent-NODE` beside the join file, the user's alone like that. The head takes it away as it reads it, the
# node itself when it is started again. How long it holds: start_failure_files.py.


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
            self._node.post(lambda: self._report_rejections(heeded))

    def _report_rejections(self, heeded: list[JoinRejection]) -> None:
        self._due_s = time.monotonic() + EVERY_S
        for one in heeded:
            absent = NodeAbsent(
                node=one.node, slot=one.slot, why=one.text, exit_code=one.exit_code, is_final=one.is_final
            )
            self._context.handle(absent)
