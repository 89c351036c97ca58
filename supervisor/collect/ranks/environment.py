"""What a rank computes with, for RUN/environment.json: its own word of it, and the files that it names.

Read after the ranks have started, by a thread that nobody waits for. Only regular files are opened, and only such as
are the run's user's or root's; of others, and of what is too large, size and time are told. A package's name and
version are those of its folder (`torch-2.13.0.dist-info`) on the rank's own sys.path: nothing of it is imported or
read. git is not asked, which would go by the repository's own configuration: its files say which commit is checked out.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from guardrun.hooks.wire.messages import EnvironmentReported
from guardrun.supervisor.base.redaction import redact_text, redact_values
from guardrun.supervisor.rundir.environment import DIGEST_CHARS, Environment, FileDigest, Repository

MAX_FILE_BYTES = 4 << 20
MAX_BYTES = 64 << 20
"""Of all files."""
MAX_S = 10.0
MAX_ARGUMENTS = 32
MAX_PACKAGES = 3000
MAX_GIT_BYTES = 4 << 20
MAX_ABOVE = 32
"""Folders above the script in which a repository is looked for."""
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-(?P<version>[0-9][^-]*)(?:-.*)?\.(?:dist-info|egg-info)")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class FileReader:
    """Digests of files, within bounds for all of them."""

    def __init__(self, uid: int) -> None:
        """uid: whose files are read, root's beside them."""
        self._uid = uid
        self._left = MAX_BYTES
        self._ends_s = time.monotonic() + MAX_S

    def digest(self, path: str) -> FileDigest:
        """A file's. Never raises."""
        try:
            found = os.stat(path)
        except (OSError, ValueError) as error:
            return FileDigest(why=getattr(error, "strerror", None) or str(error))
        size, mtime_s = found.st_size, round(found.st_mtime, 3)
        why = self._why_not(found)
        if not why:
            try:
                return FileDigest(digest=self._read(path), size_bytes=size)
            except OSError as error:
                why = error.strerror or str(error)
        return FileDigest(size_bytes=size, mtime_s=mtime_s, why=why)

    def _why_not(self, found: os.stat_result) -> str:
        if not stat.S_ISREG(found.st_mode):
            return "it is no regular file"
        if found.st_uid not in (self._uid, 0):
            return "it belongs to another user"
        if found.st_size > MAX_FILE_BYTES:
            return f"larger than {MAX_FILE_BYTES >> 20} MiB"
        if found.st_size > self._left or time.monotonic() > self._ends_s:
            return "there are too many files"
        return ""

    def _read(self, path: str) -> str:
        # What it was a moment ago it may not be any more.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            why = self._why_not(os.fstat(file.fileno()))
            if why:
                raise OSError(0, why)
            data = file.read(MAX_FILE_BYTES + 1)
        self._left -= len(data)
        return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def read_environment(
    told: EnvironmentReported, script: Sequence[str], cwd: str, *, session: int, node: str, wall_s: float
) -> Environment:
    """All of it. script, cwd: as run.json has them. Never raises for what lies on disk."""
    reader = FileReader(os.geteuid())
    files = list(dict.fromkeys([*([told.script] if told.script else []), *told.modules]))
    folder = os.path.dirname(told.script) or cwd
    return Environment(
        session=session,
        attempt=told.attempt,
        wall_s=round(wall_s, 3),
        node=node,
        script=told.script,
        files={_name(path, folder, cwd): reader.digest(path) for path in files},
        more_files=told.more_modules,
        arguments=read_arguments(script, cwd, told.script, reader),
        repository=read_repository(folder),
        packages=read_packages(told.path),
        runtime=told.runtime,
        flags=told.flags,
        seed=told.seed,
        variables={name: str(value) for name, value in redact_values(told.variables).items()},
        device=told.device,
    )


def _name(path: str, folder: str, cwd: str) -> str:
    """Such that two checkouts of the same project have the same: relative to the script, where it is one of these."""
    return os.path.relpath(path, folder) if path.startswith((f"{folder}/", f"{cwd}/")) else path


def read_arguments(script: Sequence[str], cwd: str, own: str, reader: FileReader) -> dict[str, FileDigest]:
    """Files that arguments name, `--config=FILE` too; folders, the script itself and programs are none."""
    found: dict[str, FileDigest] = {}
    for word in script[1:]:
        for name in dict.fromkeys((word, word.partition("=")[2])):
            path = os.path.join(cwd, name)
            if not name or len(found) >= MAX_ARGUMENTS or os.path.realpath(path) == os.path.realpath(own or os.sep):
                continue
            with suppress(OSError, ValueError):
                if stat.S_ISREG(os.stat(path).st_mode):
                    found[redact_text(word)] = reader.digest(path)
    return found


def read_packages(path: Iterable[str]) -> dict[str, str]:
    """Name → version of what is installed on a sys.path, by the names of folders; the first one counts."""
    found: dict[str, str] = {}
    for folder in path:
        with suppress(OSError), os.scandir(folder) as entries:
            for name in sorted(entry.name for entry in entries):
                match = _PACKAGE.fullmatch(name)
                if match is not None and len(found) < MAX_PACKAGES:
                    found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return dict(sorted(found.items()))


# git ----------------------------------------------------------------------------------------------------------------


def read_repository(folder: str) -> Repository | None:
    """The repository that a folder lies in, with the commit that is checked out; None where there is none."""
    place = Path(os.path.abspath(folder))
    for above in (place, *list(place.parents)[:MAX_ABOVE]):
        git = above / ".git"
        try:
            if git.is_dir():
                return _read_head(above, git)
            if git.is_file():  # a worktree's, or a submodule's
                named = _read_text(git, 4096).partition("gitdir:")[2].strip()
                return _read_head(above, above / named) if named else Repository(folder=str(above))
        except (OSError, ValueError):
            return Repository(folder=str(above))
    return None


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
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "it is no regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        return file.read(most).decode("utf-8")
