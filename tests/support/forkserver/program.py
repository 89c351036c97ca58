"""Which command lines are a Python that a fork can stand in for, and what it would run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_",
    "PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_LOGS", "TORCH_TRACE", "TORCH_CPP_",
    "TORCH_SHOW_",
)  # fmt: skip
"""Variables that the interpreter, the C library or torch's libraries read once, when they are loaded."""

UNABLE = -1
"""The server's answer in place of a pid, where no forked process can pass for an executed one."""
BECOME = "--become"
"""`server.py --become COMMAND…`"""
GIVEN_SERVER = "TEST_FORK_SERVER"
"""Of a worker that was started with a server of its own: the number of its connection to it, and its pid."""

MADE_UP_FOR = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})
READ_EACH_TIME = frozenset({"TORCHINDUCTOR_CACHE_DIR", "PYTHON_EXEC"})
"""The first one torch sets itself, in a test's process as well: everything that came after that would be executed."""


@dataclass(frozen=True)
class Program:
    """What `python …` was asked to run."""

    kind: Literal["script", "module", "code"]
    target: str
    arguments: list[str]
    is_unbuffered: bool
    command: list[str]
    """As /proc/PID/cmdline shows it."""
    name: str
    """As /proc/PID/comm does."""


def parse_command(command: Sequence[str], environment: Mapping[str, str]) -> Program | None:
    """The program of a command line, or None where it is no plain Python of this environment."""
    words = [os.fspath(word) for word in command]
    if not words or not all(isinstance(word, str) for word in words):
        return None
    name = os.path.basename(words[0])
    if _is_script_of_ours(words[0]):
        words = [sys.executable, *words]
    if words[0] != sys.executable:
        return None
    is_unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    rest = words[1:]
    while rest and rest[0] == "-u":
        is_unbuffered, rest = True, rest[1:]
    if len(rest) >= 2 and rest[0] in ("-c", "-m"):
        kind: Literal["module", "code"] = "code" if rest[0] == "-c" else "module"
        return Program(kind, rest[1], rest[2:], is_unbuffered, words, name)
    if not rest or rest[0].startswith("-"):
        return None
    return Program("script", rest[0], rest[1:], is_unbuffered, words, name)


def other_name() -> str:
    """This interpreter by another of its names: as PYTHON_EXEC it has ranks executed, below a forked guardrun, too."""
    own = Path(sys.executable)
    return str(own.with_name("python3" if own.name == "python" else "python"))


def is_alike(environment: Mapping[str, str], server: Mapping[str, str]) -> bool:
    """Say whether what is read once is the same in two environments."""
    return _read_once(environment) == _read_once(server)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    others = MADE_UP_FOR | READ_EACH_TIME
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START) and name not in others}


def _is_script_of_ours(word: str) -> bool:
    """A console script beside the interpreter: its first line names that."""
    path = Path(word)
    if not path.is_absolute() or path.parent != Path(sys.executable).parent:
        return False
    try:
        with path.open("rb") as file:
            return file.readline().rstrip() == b"#!" + os.fsencode(sys.executable)
    except OSError:
        return False
