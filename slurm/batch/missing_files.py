"""Files and folders that a job needs and that are not there, as seen from the folder that it is submitted from."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from guardrun.slurm.batch.script import JobWish, read_command

OUTPUTS = ("output", "error")
"""Options that name a file which Slurm opens before it starts the batch script. Where it cannot, the job fails at once
(JobLaunchFailure), and there is no output that would say so (22.05, seen)."""
DEFAULT_OUTPUT = "%x-%j.out"

_PATTERN = re.compile(r"%(?P<width>\d*)(?P<letter>[A-Za-z%])")


def remarks_on_files(wish: JobWish, cwd: Path, user: str) -> list[str]:
    """One sentence each. cwd: where the job is submitted. What cannot be looked at is not said to be missing."""
    folder = cwd / (wish.options.get("chdir") or "")
    found = _script(wish, folder)
    for name in OUTPUTS:
        if value := wish.options.get(name):
            found += _output(name, value, folder, {"x": wish.name, "u": user, "%": "%"})
    return found


def _script(wish: JobWish, folder: Path) -> list[str]:
    given = read_command(wish.command)
    if not given.is_file or _kind(folder / given.script) is not _Kind.NONE:
        return []
    where = "here" if os.path.isabs(given.script) else f"in {folder}, where the job would run"
    return [f"there is no script {given.script} {where}: guardrun would end at once on every node"]


def _output(option: str, value: str, folder: Path, known: Mapping[str, str]) -> list[str]:
    """value: Slurm's pattern; a backslash in it has all letters taken word for word (sbatch(1), filename pattern)."""
    lost = "the job would fail at once, without a word"
    is_literal = "\\" in value
    patterns = [] if is_literal else list(_PATTERN.finditer(value.rpartition("/")[0]))
    if unknown := next((found[0] for found in patterns if found["letter"] not in known), ""):
        return [
            f"--{option}={value}: a folder with {unknown} in its name cannot be there before the job is, and Slurm "
            f"makes none: {lost}"
        ]
    path = value.replace("\\", "") if is_literal else _PATTERN.sub(lambda found: _fill(found, known), value)
    place = folder / os.path.dirname(path)
    if _kind(place) in (_Kind.NONE, _Kind.OTHER):
        return [f"--{option}={value}: there is no folder {place}, and Slurm makes none: {lost}"]
    if path.endswith("/") or _kind(folder / path) is _Kind.FOLDER:
        return [f"--{option}={value} is a folder: name a file, as {value.rstrip('/')}/{DEFAULT_OUTPUT}, or {lost}"]
    return []


def _fill(found: re.Match[str], known: Mapping[str, str]) -> str:
    return known.get(found["letter"], found[0])


class _Kind(Enum):
    """What is at a path."""

    NONE = "nothing"
    FOLDER = "a folder"
    OTHER = "something else"
    UNKNOWN = "may not be looked at, or does not answer as it should"


def _kind(path: Path) -> _Kind:
    try:
        return _Kind.FOLDER if stat.S_ISDIR(path.stat().st_mode) else _Kind.OTHER
    except (FileNotFoundError, NotADirectoryError):
        return _Kind.NONE
    except (OSError, ValueError):
        return _Kind.UNKNOWN
