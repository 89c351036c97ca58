"""Where guardrun keeps what it knows of a node between runs, and how a file there survives whatever happens."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from guardrun.supervisor.base.own_files import READABLE, make_folders, write_file

SYSTEM_FOLDER = Path("/var/lib/guardrun")
"""Root's, and so the node agent's; everybody may read it."""


def user_folder(environ: Mapping[str, str]) -> Path | None:
    """$XDG_STATE_HOME/guardrun, by default ~/.local/state/guardrun; None for a user without a home."""
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):  # others are to be ignored (XDG Base Directory Specification)
        return Path(base) / "guardrun"
    home = environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(home) / ".local" / "state" / "guardrun" if home.startswith("/") else None


def may_write(folder: Path) -> bool:
    """Say whether this process may write in a folder, or make it."""
    while not folder.exists():
        if folder == folder.parent:
            return False
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def state_folder(state_dir: str, environ: Mapping[str, str], system_folder: Path = SYSTEM_FOLDER) -> Path | None:
    """The one folder that this process keeps the node's state in; state_dir: [node] state_dir, absolute or empty."""
    if state_dir:
        return Path(state_dir)
    return system_folder if may_write(system_folder) else user_folder(environ)


def make_folder(folder: Path) -> None:
    """Make a folder that everybody may read, whatever the umask, unless it is there. Raises OSError."""
    make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(0o755)
        folder.chmod(0o755)


def write_durably(path: Path, data: bytes, mode: int = READABLE) -> None:
    """Write, in a folder that is made if need be, what outlives a loss of power and has this mode. Raises OSError."""
    make_folder(path.parent)
    write_file(path, data, mode, is_durable=True, is_exact=True)
