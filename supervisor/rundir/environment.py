"""RUN/environment.json: what a run's training was computed with: code, packages, versions, flags, variables.

Written by the supervisor that has global rank 0, once its ranks train: what is told there is that rank's. A run that is
continued, or whose code has changed by its next attempt, has several records, oldest first; one that says nothing new
is not written again. What is not known is left out, and `troubles` says why.

Digests are the first DIGEST_CHARS hexadecimal digits of SHA-256. Values of variables that look like secrets are not
recorded (supervisor/base/redaction.py).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import NotOwnError, open_own, write_own
from guardrun.supervisor.base.printable import encode_json

NAME = "environment.json"
SCHEMA = 1
DIGEST_CHARS = 16
MAX_RECORDS = 16
"""Of a run: the first ones are kept, and the last one."""
MAX_FILE_BYTES = 16 << 20


class FileDigest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file, by its content; where that was not read, by its size and time."""

    digest: str = ""
    """Empty: it was not read."""
    size_bytes: int = -1
    """-1: not known."""
    mtime_s: float = 0.0
    """Seconds since the epoch; told where there is no digest."""
    why: str = ""
    """Why there is no digest."""


class Repository(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The git repository that the script lies in, as its files say; git itself is not asked."""

    folder: str
    commit: str = ""
    """Empty: not known."""
    branch: str = ""
    """Empty: detached, or not known."""
    is_compared: bool = False
    """`files` were held against the index; what is staged is not held against the commit."""
    changed: list[str] = []
    """Those of them that are not what the index has, …"""
    untracked: list[str] = []
    """… and those that it does not know; relative to `folder`."""


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What global rank 0 was run with; what is empty is not known."""

    session: int = 0
    """Of the guardrun that had the run: 0 for the one that created it."""
    attempt: int = 0
    wall_s: float = 0.0
    """When it was recorded, in seconds since the epoch."""
    node: str = ""
    script: str = ""
    """Absolute path of the file that is `__main__`."""
    files: dict[str, FileDigest] = {}
    """The script and the user's own modules, by their path relative to its folder."""
    more_files: int = 0
    """So many more modules were imported, and are not looked at."""
    arguments: dict[str, FileDigest] = {}
    """Files that the script's arguments name, by what the argument says."""
    repository: Repository | None = None
    packages: dict[str, str] = {}
    """Installed distributions of the rank's interpreter: name → version."""
    runtime: dict[str, str] = {}
    """python, torch, cuda, nccl, …: versions as the rank's own modules tell them."""
    flags: dict[str, str] = {}
    """Precision and determinism, as they stood after the first steps."""
    seed: int | None = None
    """torch.initial_seed() by then."""
    variables: dict[str, str] = {}
    """Of the rank's environment, those that matter for what is computed."""
    device: str = ""
    """The model of the rank's device, as torch names it."""
    troubles: list[str] = []


class _File(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    records: list[Environment] = []


def read_environments(run_dir: Path) -> tuple[list[Environment], str]:
    """A run's records, oldest first, and why there are none: empty where nothing was recorded."""
    path = run_dir / NAME
    try:
        with open(open_own(path, is_anybodys=True), "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return [], ""
    except NotOwnError as error:
        return [], str(error)
    except OSError as error:
        return [], f"{path} can't be read: {error.strerror or error}"
    if len(data) > MAX_FILE_BYTES:
        return [], f"{path} is larger than guardrun writes it"
    try:
        return msgspec.json.decode(data, type=known_type(_File)).records, ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [], f"{path} is none of this version of guardrun: {error}"


def add_environment(run_dir: Path, new: Environment) -> bool:
    """Add a record where it says anything new; False where it does not. Raises OSError."""
    known, _ = read_environments(run_dir)
    if known and _said(known[-1]) == _said(new):
        return False
    kept = [*known[: MAX_RECORDS - 1], new]
    write_own(run_dir / NAME, msgspec.json.format(encode_json(_File(records=kept))))
    return True


def _said(one: Environment) -> Environment:
    return msgspec.structs.replace(one, session=0, attempt=0, wall_s=0.0, troubles=[])
