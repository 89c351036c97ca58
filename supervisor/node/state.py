"""Where guardrun keeps what it knows of a node between runs, and how a file there survives whatever happens."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o755)


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write so that readers, a crash and a loss of power see the old file or the new one. Raises OSError."""
    make_folder(path.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring the renaming itself to the disk. Some file systems know no such thing: then it is as good as it gets."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
