"""A head that was refused before it opened a run leaves word of it: else the other nodes would wait for it in vain.

Beside the join file, `.join-KEY.refused` or `.join-KEY@HOST.refused`, the user's alone like that. The join file itself
is left as it is, as it may be a living head's. Whoever may lead takes the word back when it starts.

Nodes that wait for their first head read it; how long it holds: start_failure_files.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from guardrun.supervisor.fleet.rendezvous.join_file import EVERY, REFUSED
from guardrun.supervisor.fleet.rendezvous.start_failure_files import (
    Said,
    read_said,
    take_back_said,
    write_said,
)


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
