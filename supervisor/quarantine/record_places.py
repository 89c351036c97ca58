"""Which files hold what is known of quarantine. Light: asked at every start of guardrun."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from guardrun.supervisor.base.node_state import SYSTEM_FOLDER, state_folder, user_folder

FILE = "quarantine.json"
SHARED_FOLDER = "quarantine"


class Folders(NamedTuple):
    """What [node] names, absolute or empty."""

    state_dir: str
    shared_dir: str


def absolute_folders(state_dir: str, shared_dir: str, cwd: str | os.PathLike[str]) -> Folders:
    """The folders of [node], as configured for whoever works in cwd."""
    return Folders(*(os.path.join(cwd, name) if name else "" for name in (state_dir, shared_dir)))


def folders_of(config: Mapping[str, Any], cwd: str) -> Folders:
    """The folders of [node] in a run's effective configuration, as run.json has it."""
    table = config.get("node", {})
    return absolute_folders(table.get("state_dir", ""), table.get("shared_dir", ""), cwd)


class Place(NamedTuple):
    """A file that holds a part of the record."""

    path: Path
    is_shared: bool = False
    is_written: bool = False
    """By this process; others are only read."""


def find_places(
    state_dir: str, shared_dir: str, environ: Mapping[str, str], node: str, system_folder: Path = SYSTEM_FOLDER
) -> list[Place]:
    """Where the record of a node is kept. state_dir, shared_dir: as [node] has them, absolute or empty."""
    own = state_folder(state_dir, environ, system_folder)
    # What root has said of the node holds whatever a user has configured.
    others = [system_folder] if state_dir else [system_folder, user_folder(environ)]
    folders = dict.fromkeys(folder for folder in (own, *others) if folder is not None)
    places = [Place(folder / FILE, is_written=folder == own) for folder in folders]
    if shared_dir:
        path = Path(shared_dir) / SHARED_FOLDER / f"{quote(node, safe='')}.json"
        places.append(Place(path, is_shared=True, is_written=True))
    return places


def names_here(environ: Mapping[str, str]) -> list[str]:
    """What this node may be called in a record: Slurm's name for it, its hostname, and that without a domain.

    The node agent, which Slurm does not start, knows only the hostname; a job goes by Slurm's.
    """
    hostname = socket.gethostname()
    names = (environ.get("SLURMD_NODENAME", ""), hostname, hostname.partition(".")[0])
    return list(dict.fromkeys(name for name in names if name))


def may_hold_any(places: Sequence[Place]) -> bool:
    """Say whether anything may be recorded there at all. A shared folder is not touched: it may be dead."""
    return any(
        place.is_shared or os.path.lexists(place.path) or os.path.lexists(copy_of(place.path)) for place in places
    )


def copy_of(path: Path) -> Path:
    """Of a file of the record: the same once more."""
    return path.with_name(f"{path.name}.copy")
