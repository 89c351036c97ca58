"""Which commit a folder has checked out, and whether some files are still those of its index, by git's own files.

git itself is not run: it goes by the repository's configuration, which may name programs. Only regular files are
opened, and bounded. A file that git filters on its way into the index (line ends, large files) looks changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from guardrun.supervisor.rundir.environment import Repository

MAX_GIT_BYTES = 4 << 20
MAX_INDEX_BYTES = 16 << 20
MAX_ABOVE = 32
"""Folders above the script in which a repository is looked for."""
MAX_NAME_BYTES = 4096
"""Of a path in an index, as of any path."""
_VARINT_BYTES = 4
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HEADER = struct.Struct(">4sII")
_ENTRY = struct.Struct(">40x20sH")
_EXTENDED = 0x4000


def blob_name(data: bytes) -> str:
    """What git calls a file of this content, in a repository whose names are SHA-1's.

    https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
    """
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def read_repository(folder: str, blobs: Mapping[str, str]) -> Repository | None:
    """The repository that a folder lies in, with the commit that is checked out; None where there is none.

    blobs: by absolute path, what git calls the content of files that are held against its index.
    """
    place = Path(os.path.abspath(folder))
    for above in (place, *list(place.parents)[:MAX_ABOVE]):
        git = above / ".git"
        try:
            if git.is_dir():
                return _compare(_read_head(above, git), git, blobs)
            if git.is_file():  # a worktree's, or a submodule's
                named = _read_text(git, 4096).partition("gitdir:")[2].strip()
                if not named:
                    return Repository(folder=str(above))
                return _compare(_read_head(above, above / named), above / named, blobs)
        except (OSError, ValueError):
            return Repository(folder=str(above))
    return None


def _compare(found: Repository, git: Path, blobs: Mapping[str, str]) -> Repository:
    """With which of the files are not what the index has; the same where that can't be read."""
    try:
        index = parse_index(_read_bytes(git / "index", MAX_INDEX_BYTES))
    except (OSError, ValueError):
        return found
    own = {os.path.relpath(path, found.folder): blob for path, blob in blobs.items()}
    inside = {name: blob for name, blob in own.items() if not name.startswith("..")}
    return msgspec.structs.replace(
        found,
        is_compared=True,
        changed=sorted(name for name, blob in inside.items() if index.get(name, blob) != blob),
        untracked=sorted(name for name in inside if name not in index),
    )


def parse_index(data: bytes) -> dict[str, str]:
    """Path → SHA-1 of what is staged, of an index of version 2, 3 or 4. Raises ValueError.

    https://git-scm.com/docs/index-format
    """
    try:
        signature, version, count = _HEADER.unpack_from(data)
        if signature != b"DIRC" or version not in (2, 3, 4):
            raise ValueError("no index of a known version")
        found: dict[str, str] = {}
        place, name = _HEADER.size, b""
        for _ in range(count):
            start = place
            sha, flags = _ENTRY.unpack_from(data, place)
            place += _ENTRY.size + (2 if flags & _EXTENDED else 0)
            if version == 4:
                cut, place = _parse_varint(data, place)
                name = name[: max(0, len(name) - cut)]
            else:
                name = b""
            end = data.index(b"\0", place)
            # In version 4 an entry may have all of the one before it: then names grow with their number.
            if len(name) + end - place > MAX_NAME_BYTES:
                raise ValueError("a torn index: a name is longer than any path")
            name += data[place:end]
            # Up to version 3 an entry ends at a multiple of eight, with one NUL at least.
            place = end + 1 if version == 4 else start + (end - start + 8) // 8 * 8
            found[os.fsdecode(name)] = sha.hex()
    except (struct.error, IndexError) as error:
        raise ValueError(f"a torn index: {error}") from None
    return found


def _parse_varint(data: bytes, place: int) -> tuple[int, int]:
    """Of git's offset encoding: the number, and where it ends. Raises ValueError, IndexError."""
    byte = data[place]
    value = byte & 127
    ends = place + _VARINT_BYTES
    while byte & 128:
        place += 1
        if place >= ends:
            raise ValueError("a torn index: a number has too many digits")
        byte = data[place]
        value = ((value + 1) << 7) | (byte & 127)
    return value, place + 1


def _read_head(folder: Path, git: Path) -> Repository:
    head = _read_text(git / "HEAD", 4096).strip()
    if not head.startswith("ref:"):
        return Repository(folder=str(folder), commit=head if _COMMIT.fullmatch(head) else "")
    ref = head.removeprefix("ref:").strip()
    branch = ref.removeprefix("refs/heads/")
    if not ref.startswith("refs/") or ".." in ref:
        return Repository(folder=str(folder))
    common = git
    with suppress(OSError, ValueError):
        common = git / _read_text(git / "commondir", 4096).strip()
    return Repository(folder=str(folder), commit=_read_ref(git, ref) or _read_ref(common, ref), branch=branch)


def _read_ref(git: Path, ref: str) -> str:
    with suppress(OSError, ValueError):
        commit = _read_text(git / ref, 4096).strip()
        if _COMMIT.fullmatch(commit):
            return commit
    with suppress(OSError, ValueError):
        for line in _read_text(git / "packed-refs", MAX_GIT_BYTES).splitlines():
            commit, _, name = line.partition(" ")
            if name == ref and _COMMIT.fullmatch(commit):
                return commit
    return ""


def _read_text(path: Path, most: int) -> str:
    """A regular file's first bytes. Raises OSError, ValueError."""
    return _read_bytes(path, most).decode("utf-8")


def _read_bytes(path: Path, most: int) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "it is no regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        return file.read(most)
