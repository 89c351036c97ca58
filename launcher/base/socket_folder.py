"""The run's socket folder, where ranks, supervisor and guardctl meet: made, removed, swept once it is abandoned."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from guardrun.hooks.wire.board import create_board
from guardrun.launcher.base.processes import read_boot_id

PREFIX = "guardrun-"
NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
"""As mkdtemp makes them."""
MARK = ".occupied"
"""The file in it that says who lives there (socket_folder.py)."""
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


# Abandoned folders --------------------------------------------------------------------------------------------------
# Socket folders that were left behind: where nobody lives any more, the next guardrun of this user removes them.
#
# A guardrun that ends takes its folder away, and a supervisor does where guardrun alone was killed; where both were, by
# SIGKILL, nobody did. So guardrun puts a mark into its folder, which names this boot of this machine, and both hold a
# shared lock on it for as long as they live, however they end. A folder is removed if all of this is so: it is this
# user's; its mark was made on this boot; nobody holds the lock; and no process of this user's was started with the
# folder's name in its environment, as ranks are. A folder without a mark is left alone: nobody knows whose it is.


MOST_ENTRIES = 20_000
"""Of a folder with more, as some /tmp, no more are looked through: some 10 ms."""

_MARK_BYTES = 200


class Occupied:
    """This process's share in a folder's lock; gone with the process, too, however that ends."""

    def __init__(self, fd: int) -> None:
        """fd: -1 for no share."""
        self._fd = fd

    @classmethod
    def claim(cls, folder: Path) -> Occupied:
        """For the guardrun that has made the folder. Where no mark can be made, the folder is never swept."""
        path = folder / f"{MARK}.{os.getpid()}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError:
            return cls(-1)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.write(fd, read_boot_id().encode())
            path.rename(folder / MARK)  # nobody sees it without its lock
        except OSError:
            os.close(fd)
            with suppress(OSError):
                path.unlink()
            return cls(-1)
        return cls(fd)

    @classmethod
    def join(cls, folder: Path) -> Occupied:
        """For whoever else works in it."""
        try:
            fd = os.open(folder / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return cls(-1)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return cls(-1)
        return cls(fd)

    def release(self) -> None:
        """Give up the share in the lock; once nobody has one, the folder may be removed. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sweep_left_behind(environ: Mapping[str, str], otherwise: Iterable[Path] = ()) -> list[Path]:
    """Remove the folders that are left of guardruns which were killed; those that were there.

    otherwise: as in make_socket_folder.
    """
    boot_id = read_boot_id()
    if not boot_id:
        return []
    swept: list[Path] = []
    for parent in dict.fromkeys([*candidates(environ), *otherwise]):
        try:
            with os.scandir(parent) as entries:
                names = [entry.name for entry in islice(entries, MOST_ENTRIES) if NAME.fullmatch(entry.name)]
        except OSError:
            continue
        swept += [parent / name for name in names if _sweep(parent / name, boot_id)]
    return swept


def _sweep(folder: Path, boot_id: str) -> bool:
    fds: list[int] = []
    try:
        fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        if os.fstat(fds[0]).st_uid != os.getuid():
            return False
        fds.append(os.open(MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fds[0]))
        if os.read(fds[1], _MARK_BYTES) != boot_id.encode():
            return False
        fcntl.flock(fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_used(folder):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    except OSError:
        return False  # another user's, without a mark, or alive
    finally:
        for fd in fds:
            os.close(fd)


def _is_used(folder: Path) -> bool:
    """Whether a process of this user's was started with this folder in its environment, a rank or what it left."""
    name, uid = folder.name.encode(), os.getuid()  # the path may stand there in other letters, as in JSON
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == uid and name in Path(f"/proc/{pid}/environ").read_bytes():
                    return True
    return False
