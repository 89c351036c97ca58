"""The run's socket folder: where ranks, supervisor and guardctl meet. Only the user can enter it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from guardrun.hooks.wire.board import create_board

PREFIX = "guardrun-"
NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
"""As mkdtemp makes them."""
MARK = ".occupied"
"""The file in it that says who lives there (abandoned_folders.py)."""
LONGEST_NAME = "/control"
MAX_SOCKET_BYTES = 107
"""sun_path holds 108 bytes, the last of them 0 (man 7 unix)."""


class NoSocketFolderError(Exception):
    """No folder is writable and near enough to the root for a Unix socket's name."""


MAX_PARENT_BYTES = MAX_SOCKET_BYTES - len(f"/{PREFIX}12345678{LONGEST_NAME}")


def candidates(environ: Mapping[str, str]) -> list[Path]:
    """Where the socket folder may be made, best first."""
    named = [environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"), "/tmp", "/dev/shm"]
    return [Path(name) for name in dict.fromkeys(named) if name and os.path.isabs(name)]


def make_socket_folder(environ: Mapping[str, str], otherwise: Iterable[Path] = ()) -> Path:
    """Make the run's socket folder, with room for at least a board. otherwise: where, if not in the usual places.

    Raises NoSocketFolderError, saying what was tried, and what is needed.
    """
    tried: list[str] = []
    for parent in dict.fromkeys([*candidates(environ), *otherwise]):
        if len(os.fsencode(parent)) > MAX_PARENT_BYTES:
            tried.append(f"{parent}: too long for a Unix socket's name")
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            continue
        try:
            create_board(str(folder / "probe"))
            (folder / "probe").unlink()
            with socket.socket(socket.AF_UNIX) as probe:  # not every file system has them
                probe.bind(str(folder / "probe"))
            (folder / "probe").unlink()
            return folder
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
            shutil.rmtree(folder, ignore_errors=True)
    raise NoSocketFolderError(
        f"no folder for guardrun's sockets ({'; '.join(tried)}): let TMPDIR be one of this user's that can be written, "
        f"on a file system with Unix sockets, its name at most {MAX_PARENT_BYTES} bytes long"
    )


def ensure_socket_folder(folder: Path) -> None:
    """Make the folder anew where it was cleaned away: a job may outlast what /tmp keeps.

    Raises OSError where that fails, PermissionError where somebody else has taken its name.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    at = folder.lstat()
    if not stat.S_ISDIR(at.st_mode) or at.st_uid != os.getuid():
        raise PermissionError(1, "not ours", str(folder))


def remove_socket_folder(folder: Path, *, is_just_made: bool = False) -> None:
    """Remove a run's socket folder, if it is one, and this user's: by its name, its owner, and the mark in it.

    is_just_made: by this process, which may not have come to marking it.
    """
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            is_ours = NAME.fullmatch(folder.name) and os.fstat(fd).st_uid == os.getuid()
            if is_ours and (is_just_made or _is_marked(fd)):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)


def _is_marked(folder: int) -> bool:
    try:
        mark = os.stat(MARK, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(mark.st_mode) and mark.st_uid == os.getuid()
