"""Files that are the user's alone: read, added to and written so that nobody else's hand is in between.

Whoever may write a folder chooses what its names mean: a link that leads elsewhere, a file that says what is loaded
next. So a folder is opened first, looked at through its descriptor, and what lies in it is opened by that descriptor,
never through a link. Links in the path up to the folder are the user's own (`~/scratch -> /lustre/me`), and followed.

    own       belongs to this user, and nobody else may write it
    private   a group that nobody but the user is in, as many systems give each user: counts as the user

Some file systems keep no owners, or no permissions (vfat, SMB, an NFS server that takes all for `nobody`). There, what
this process makes looks no more its own than what is there already: both are held against each other, and where they
look alike, the file system's mount has decided who may write, and nothing can be told from owner and mode.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_READ_BYTES = 256 << 20
READABLE = 0o644
SECRET = 0o600
TEMPORARY = ".guardrun-"
"""What a file's name begins with until it is whole."""
_ALL_WRITE = 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


_odd: dict[int, Looks] = {}
"""File systems, by device, on which what this process makes looks like nobody's own."""


class NotOwnError(OSError):
    """Somebody else may have had a hand in it; `strerror` says how."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


class Looks(NamedTuple):
    """How what this process makes looks in a place."""

    uid: int
    has_modes: bool = True
    """Whether it can be closed to others."""


# Judging ----------------------------------------------------------------------------------------------------------


def find_fault(found: os.stat_result, looks: Looks, *, within: int = 0o777, has_acl: bool = False) -> str:
    """What speaks against something being the user's own, in words; empty: nothing.

    within: the mode of the folder that it lies in: whom that lets in. has_acl: the group's bits stand for others, too.
    """
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != looks.uid and (is_folder or found.st_uid != 0):  # root can do anything anyhow
        return f"belongs to {name_user(found.st_uid)}, not to {name_user(looks.uid)}"
    entered = (0o020 if within & 0o010 else 0) | (0o002 if within & 0o001 else 0)
    written = found.st_mode & _ALL_WRITE & entered if looks.has_modes else 0
    mode = f"(mode {stat.S_IMODE(found.st_mode):04o})"
    if written & 0o002:
        return f"may be written by anybody {mode}"
    if written and has_acl:
        return f"may be written by those that its ACL names {mode}"
    if written and not is_private_group(found.st_gid, looks.uid):
        return f"may be written by group {name_group(found.st_gid)} {mode}"
    return ""


def is_private_group(gid: int, uid: int) -> bool:
    """Whether nobody but the user is in a group. One without a name has no members but by a process's own making."""
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid and not _is_group_named(gid)
    return group.gr_name == user.pw_name and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}


def name_user(uid: int) -> str:
    """`alice (uid 1000)`; `uid 1000` where no name is known."""
    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def name_group(gid: int) -> str:
    """Its name; its number where no name is known."""
    with suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def _is_group_named(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True


# Opening ----------------------------------------------------------------------------------------------------------


def open_folder(path: Path, *, is_anybodys: bool = False, may_be_written: bool = False, within: int = 0o777) -> int:
    """A descriptor of the user's own folder; no link.

    is_anybodys: of whatever user. may_be_written: by others as well, as long as it belongs to the user.
    within: the mode of the folder that it lies in. Raises NotOwnError, OSError.
    """
    try:
        folder = os.open(path, _FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        if os.path.islink(path):
            raise NotOwnError(path, "is a link") from None
        why = "" if is_anybodys or not isinstance(error, PermissionError) else _look_from_outside(path)
        if why:
            raise NotOwnError(path, why) from None
        raise
    try:
        if not is_anybodys:
            _check(path, folder, folder, 0o700 if may_be_written else within)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _look_from_outside(path: Path) -> str:
    """What can be said of a folder that lets nobody else in."""
    try:
        return find_fault(os.lstat(path), Looks(os.geteuid()))
    except OSError:
        return ""


def open_own(
    path: Path, flags: int = os.O_RDONLY, mode: int = READABLE, *, is_anybodys: bool = False, is_tended: bool = False
) -> int:
    """A descriptor of the user's own file in the user's own folder; neither is a link, the file nothing but a file.

    is_anybodys: of whatever user. is_tended: the folder is one that this user works in: that it belongs to the user is
    enough there. Raises NotOwnError, OSError.
    """
    folder = open_folder(path.parent, is_anybodys=is_anybodys, may_be_written=is_tended)
    try:
        return _open_in(folder, path, flags, mode, is_anybodys=is_anybodys, is_tended=is_tended)
    finally:
        os.close(folder)


def _open_in(folder: int, path: Path, flags: int, mode: int, *, is_anybodys: bool, is_tended: bool) -> int:
    try:
        fd = os.open(path.name, flags | _FILE, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOwnError(path, "is a link") from None
        if error.errno == errno.ENXIO:
            raise NotOwnError(path, "is no file") from None
        error.filename = str(path)
        raise
    try:
        found, above = os.fstat(fd), os.fstat(folder)
        if not stat.S_ISREG(found.st_mode):
            raise NotOwnError(path, "is no file")
        if not is_anybodys:
            _check(path, fd, folder, 0o700 if is_tended else above.st_mode)
        elif found.st_uid not in (above.st_uid, 0, os.geteuid()):
            raise NotOwnError(path, f"belongs to {name_user(found.st_uid)}, its folder to {name_user(above.st_uid)}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_add(path: Path) -> int:
    """A descriptor to add to a file of the folder that this user works in. Raises NotOwnError, OSError."""
    return open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, is_tended=True)


def read_own(path: Path, *, is_anybodys: bool = False, limit: int = MAX_READ_BYTES) -> bytes:
    """What the user's own file holds. Raises NotOwnError, OSError, also where it holds more."""
    with open(open_own(path, is_anybodys=is_anybodys), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, "is too large", str(path))
    return data


def _check(path: Path, fd: int, folder: int, within: int) -> None:
    """Raise NotOwnError where something is not the user's own. folder: where it can be seen what we make looks like."""
    found, usual = os.fstat(fd), Looks(os.geteuid())
    has_acl = bool(found.st_mode & 0o020) and _has_acl(fd)
    if not find_fault(found, usual, within=within, has_acl=has_acl):
        return
    device = os.fstat(folder).st_dev
    odd = _odd.get(device)
    if odd is None or find_fault(found, odd, within=within, has_acl=has_acl):
        odd = _make_and_look(folder) or usual
    if why := find_fault(found, odd, within=within, has_acl=has_acl):
        raise NotOwnError(path, why)
    _odd[device] = odd


def _has_acl(fd: int) -> bool:
    try:
        return bool(os.getxattr(fd, "system.posix_acl_access"))
    except OSError:
        return False  # none, or a file system without


def _make_and_look(folder: int) -> Looks | None:
    """By a descriptor from first to last: in a stranger's folder a name is exchanged as soon as it is there."""
    name = _new_name()
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, SECRET, dir_fd=folder)
        try:
            made = os.fstat(fd)
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=folder)
    except OSError:
        return None
    return Looks(made.st_uid, has_modes=not made.st_mode & 0o777 & ~SECRET)


def keeps_modes(folder: Path) -> bool:
    """Whether what is made in a folder can be closed to others."""
    fd = os.open(folder, _FOLDER)
    try:
        looks = _make_and_look(fd)
    finally:
        os.close(fd)
    return looks is None or looks.has_modes


# Writing ----------------------------------------------------------------------------------------------------------


def write_own(path: Path, data: bytes, mode: int = READABLE) -> None:
    """As write_file, in a folder that belongs to the user. Raises NotOwnError, OSError."""
    folder = open_folder(path.parent, may_be_written=True)
    try:
        _write_in(folder, path, data, mode)
    finally:
        os.close(folder)


def write_file(
    path: Path, data: bytes, mode: int = READABLE, *, is_durable: bool = False, is_exact: bool = False
) -> None:
    """Write so that a reader, and a crash, see the old file or the new one; a link there is replaced, not followed.

    mode: less what the umask takes away, unless it is_exact. is_durable: and a loss of power, too. Raises OSError.
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        _write_in(folder, path, data, mode, is_exact)
        if is_durable:
            with suppress(OSError):  # some file systems know no such thing: then it is as good as it gets
                os.fsync(folder)
    finally:
        os.close(folder)


def _write_in(folder: int, path: Path, data: bytes, mode: int, is_exact: bool = False) -> None:
    temporary = _new_name()
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=folder)
        try:
            with open(fd, "wb") as file:
                if is_exact:
                    os.fchmod(fd, mode)
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def make_folders(path: Path) -> None:
    """As mkdir -p; under a umask that lets everybody write nobody but the user may. Raises OSError.

    One that lets the group write means it: a project's members share what lies there, each their own (sticky).
    """
    umask = os.umask(0o077)
    os.umask(umask)
    _make_folders(path, 0o755 if not umask & 0o002 or umask & 0o020 else 0o1775)


def _make_folders(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_folders(path.parent, mode & 0o777)
        path.mkdir(mode, exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    except OSError:
        if not path.is_dir():  # it may be there all the same: on a read-only file system that is said first
            raise


def make_private(path: Path) -> None:
    """As mkdir -p, of folders that only the user enters. Raises OSError."""
    _make_folders(path, 0o700)


def _new_name() -> str:
    """That nobody can know before."""
    return f"{TEMPORARY}{os.urandom(8).hex()}"
