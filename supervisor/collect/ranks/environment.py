"""What a rank computes with, for RUN/environment.json: its own word of it, and the files that it names.

Read after the ranks have started, by a thread that nobody waits for. Only regular files are opened, and only such as
are the run's user's or root's; of others, and of what is too large, size and time are told. A package's name and
version are those of its folder (`torch-2.13.0.dist-info`) on the rank's own sys.path: nothing of it is imported or
read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from guardrun.hooks.wire.messages import EnvironmentReported
from guardrun.supervisor.base.redaction import redact_text, redact_values
from guardrun.supervisor.collect.ranks.repository import blob_name, read_repository
from guardrun.supervisor.rundir.environment import DIGEST_CHARS, Environment, FileDigest

MAX_FILE_BYTES = 4 << 20
MAX_BYTES = 64 << 20
"""Of all files."""
MAX_S = 10.0
MAX_ARGUMENTS = 32
MAX_PACKAGES = 3000
MAX_ENTRIES = 20_000
"""Of a folder on sys.path: the script's own may hold its data, too, in millions of files."""
MAX_PATHS = 200
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-(?P<version>[0-9][^-]*)(?:-.*)?\.(?:dist-info|egg-info)")


class FileReader:
    """Digests of files, within bounds for all of them."""

    def __init__(self, uid: int) -> None:
        """uid: whose files are read, root's beside them."""
        self._uid = uid
        self.blobs: dict[str, str] = {}
        """Of those that were read, what git would call their content."""
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
        self.blobs[path] = blob_name(data)
        return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def read_environment(
    told: EnvironmentReported, script: Sequence[str], cwd: str, *, session: int, node: str, wall_s: float
) -> Environment:
    """All of it. script, cwd: as run.json has them. Never raises for what lies on disk."""
    reader = FileReader(os.geteuid())
    files = list(dict.fromkeys([*([told.script] if told.script else []), *told.modules]))
    folder = os.path.dirname(told.script) or cwd
    digests = {_name(path, folder, cwd): reader.digest(path) for path in files}
    return Environment(
        session=session,
        attempt=told.attempt,
        wall_s=round(wall_s, 3),
        node=node,
        script=told.script,
        files=digests,
        more_files=told.more_modules,
        arguments=read_arguments(script, cwd, told.script, reader),
        repository=read_repository(folder, {path: reader.blobs[path] for path in files if path in reader.blobs}),
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
    for folder in islice(path, MAX_PATHS):
        matches = []
        with suppress(OSError, ValueError), os.scandir(folder) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                if entry.name.endswith("-info") and (match := _PACKAGE.fullmatch(entry.name)) is not None:
                    matches.append(match)
        for match in sorted(matches, key=lambda one: one[0]):
            if len(found) < MAX_PACKAGES:
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return dict(sorted(found.items()))
