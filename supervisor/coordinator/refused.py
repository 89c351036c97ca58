"""A head that was refused before it opened a run leaves word of it: else the other nodes would wait for it in vain.

Beside the join file, `.join-KEY.refused` or `.join-KEY@HOST.refused`, the user's alone like that. The join file itself
is left as it is, as it may be a living head's. Whoever may lead takes the word back when it starts.

Nodes that wait for their first head read it. Times are of two hosts' wall clocks. What was said after a node's guardrun
was started holds at once. What was said within a minute before may be of the start before this one, which the user has
mended: it holds if it still stands when a head that was started with the node would have taken it back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.supervisor.coordinator.joinfile import EVERY, REFUSED, JoinError, read_own, replace_own
from guardrun.supervisor.coordinator.lease import boot_s
from guardrun.supervisor.printable import encode_json

SCHEMA = 1
STALE_S = 60.0
"""Said so long before a node began: of an earlier start. Clocks may be apart by as much."""
RESTART_S = 15.0
"""How much later than a node, ready to join, a head may have read its command line that was started with it."""
MAX_TEXT_CHARS = 4000


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why no run was opened."""

    schema: int = SCHEMA
    key: str
    """The job's, as in FleetFile."""
    head: str
    """Its name as a node."""
    names: list[str] = []
    """As in JoinFile."""
    text: str
    """For a person: what guardrun said there."""
    exit_code: int
    said_wall_s: float


def refused_path(join: Path) -> Path:
    """Where it lies. join: the join file's place, or a pattern of places."""
    return join.with_name(f"{join.name}{REFUSED}")


def leave_word(join: Path, refused: Refused) -> None:
    """Say it, in place of what was said before. Raises OSError, JoinError where the place belongs to others."""
    refused = msgspec.structs.replace(refused, text=refused.text[:MAX_TEXT_CHARS])
    replace_own(refused_path(join), encode_json(refused))


def take_back(join: Path) -> None:
    """A head starts here, or is told that it may: what was said of an earlier start is over."""
    with suppress(OSError, JoinError):
        path = refused_path(join)
        read_own(path)
        path.unlink(missing_ok=True)


def find_refused(join: Path, names: Collection[str], key: str) -> Refused | None:
    """The newest that is about this job. join, names: as for find_join_file."""
    path = refused_path(join)
    places = path.parent.glob(path.name) if join.name.endswith(f"@{EVERY}") else [path]
    found = [one for place in places if (one := _read(place)) is not None and one.key == key]
    if join.name.endswith(f"@{EVERY}"):
        found = [one for one in found if not set(names).isdisjoint(one.names)]
    return max(found, key=lambda one: one.said_wall_s, default=None)


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


def _read(path: Path) -> Refused | None:
    """None where there is none, or none that may be believed."""
    try:
        refused = msgspec.json.decode(read_own(path), type=Refused)
    except (JoinError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return refused if refused.schema == SCHEMA and 0 < refused.exit_code < 256 else None


def now_refused(key: str, head: str, names: Collection[str], text: str, exit_code: int) -> Refused:
    """Said now."""
    return Refused(key=key, head=head, names=list(names), text=text, exit_code=exit_code, said_wall_s=time.time())
