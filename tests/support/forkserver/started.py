"""What subprocess.Popen asks for when it starts a process: the arguments of its `_execute_child`, by name."""

from __future__ import annotations

import os
import subprocess
from typing import Any


class Started:
    """The arguments of Popen._execute_child, by name."""

    NAMES = (
        "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags",
        "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals",
        "gid", "gids", "uid", "umask", "start_new_session",
    )  # fmt: skip

    def __init__(self, *arguments: Any) -> None:
        self.__dict__.update(zip(self.NAMES, arguments, strict=False))
        self.more = arguments[len(self.NAMES) :]
        """process_group, in Python 3.11 and newer."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def is_plain(self) -> bool:
        """Say whether nothing is asked for that only an exec gives."""
        return (
            isinstance(self.args, (list, tuple))
            and self.executable is None
            and self.preexec_fn is None
            and self.close_fds
            and not self.shell
            and self.restore_signals
            and self.gid is None
            and self.gids is None
            and self.uid is None
            and self.umask == -1
            and all(value == -1 for value in self.more)
            and (self.cwd is None or os.path.isdir(self.cwd))
        )

    def descriptors(self) -> dict[int, int]:
        """Number in the child → number here."""
        standard = {0: self.p2cread, 1: self.c2pwrite, 2: self.errwrite}
        wanted = {number: number if there == -1 else there for number, there in standard.items()}
        wanted |= {number: number for number in self.pass_fds}
        return {number: there for number, there in wanted.items() if is_open(there)}

    def close_child_ends(self, popen: subprocess.Popen[Any]) -> None:
        """As _execute_child does at its end."""
        devnull = getattr(popen, "_devnull", None)
        for mine, theirs in (
            (self.p2cread, self.p2cwrite),
            (self.c2pwrite, self.c2pread),
            (self.errwrite, self.errread),
        ):
            if mine != -1 and theirs != -1 and mine != devnull:
                os.close(mine)
        if devnull is not None:
            os.close(devnull)
        popen._closed_child_pipe_fds = True  # type: ignore[attr-defined]


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
