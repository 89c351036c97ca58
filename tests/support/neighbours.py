"""Users of one machine that do not trust each other: real ones, by number, from a test that root runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

NEIGHBOUR, VICTIM = 47_011, 47_012
"""Of nobody else, on any machine that tests run on."""


def make_passable(folder: Path) -> Path:
    """Let everybody through to a test's folder."""
    for one in (folder, *folder.parents):
        if one.stat().st_uid == os.getuid() and not one.stat().st_mode & 0o001:
            one.chmod(one.stat().st_mode | 0o011)
    return folder


def shell_as(uid: int, script: str, cwd: Path) -> str:
    """Run a shell's script as a user; its output."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    done = subprocess.run(
        [*user, "sh", "-euc", script], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_as(uid: int, code: str, *arguments: object, preload: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as a user. preload: as root before that, for a user may not be let through to the interpreter."""
    drop = f"import os, sys; os.setgroups([]); os.setgid({uid}); os.setuid({uid}); os.environ['HOME'] = os.getcwd()\n"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GUARDRUN_", "SUDO_"))}
    return subprocess.run(
        [sys.executable, "-c", f"{preload}\n{drop}{code}", *map(str, arguments)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class User(NamedTuple):
    name: str
    uid: int


@contextmanager
def named_user(letter: str) -> Iterator[User]:
    """A user that has a name, and a group, while the test lasts; of this process alone, for others test beside it."""
    user = User(f"guardrun-{letter}{os.getpid()}", 20_000 + 2 * (os.getpid() % 13_000) + ord(letter) % 2)
    subprocess.run(
        ["useradd", "--no-create-home", f"--uid={user.uid}", "--user-group", user.name], check=True, timeout=60
    )
    try:
        yield user
    finally:
        subprocess.run(["userdel", "--force", user.name], check=True, timeout=60, stderr=subprocess.DEVNULL)
