"""A copy of the project with an environment of its own: what is planted there is what tests import, and nobody else.

Its packages are links to those of the environment that this runs in, but for guardrun, for which a .pth file leads to
the copy's src. The commands (guardrun, guardrund, guardctl, pytest, …) are the same with another first line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutation import ROOT, Mutation, mutate

LEFT_OUT = shutil.ignore_patterns(
    ".venv", ".git", ".gym", ".demo", ".hypothesis", "__pycache__", ".*_cache", "build", "dist", "guardrun-runs"
)
STAMPS = (".stamp", ".stamp-dev")
"""Of the Makefile: the environment is complete."""
OWN = "_a_copy_of_guardrun.pth"
"""Before all others: they are read in the order of their names."""
NOT_COPIED = ("python", "pip", "activate", "Activate")
CHECK_S = 60.0


class Tree:
    """The copy, in a folder that is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.python = self.root / ".venv" / "bin" / "python"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=LEFT_OUT)
        self._make_environment()
        self._check()

    @contextmanager
    def planted(self, mutation: Mutation, number: int) -> Iterator[None]:
        """Have a mutation in the copy for a while. number: no other one's. Raises StaleError."""
        path = self.root / mutation.file
        text, stat = path.read_text(), path.stat()
        path.write_text(mutate(mutation, text))
        # What has been compiled is known by time and size: each text has a time of its own.
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + (number + 1) * 10_000_000_000))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _make_environment(self) -> None:
        folder = self.root / ".venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        packages = next(folder.glob("lib/python3.*/site-packages"))
        (packages / OWN).write_text(f"{self.root / 'src'}\n")
        for package in Path(sysconfig.get_path("purelib")).iterdir():
            if package.name not in ("guardrun", "_guardrun.pth", "__pycache__"):
                (packages / package.name).symlink_to(package)
        for command in Path(sysconfig.get_path("scripts")).iterdir():
            if command.is_file() and not command.name.startswith((*NOT_COPIED, ".")):
                self._copy_command(command)
        for name in STAMPS:
            (folder / name).touch()

    def _copy_command(self, command: Path) -> None:
        data = command.read_bytes()
        first, newline, rest = data.partition(b"\n")
        copy = self.python.with_name(command.name)
        if first.startswith(b"#!") and b"python" in first:
            copy.write_bytes(f"#!{self.python}".encode() + newline + rest)
            copy.chmod(0o755)
        else:
            copy.symlink_to(command.resolve())

    def _check(self) -> None:
        """Raises RuntimeError where a process of the copy's would import what lies elsewhere."""
        shown = "import guardrun, os, guardrun.supervisor as s; print(os.path.realpath(s.__file__))"
        done = subprocess.run(
            [self.python, "-c", shown],
            cwd="/",
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
        )
        if done.returncode or not Path(done.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"the copy in {self.root} imports another guardrun: {done.stdout}{done.stderr}")


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lead a copy's Python back to the checkout."""
    # Without compiled files each of the many processes would compile guardrun anew.
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    scripts = sysconfig.get_path("scripts")
    path = [folder for folder in environment.get("PATH", os.defpath).split(os.pathsep) if folder != scripts]
    return environment | {"PATH": os.pathsep.join(path)}
