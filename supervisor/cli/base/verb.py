"""What every verb of guardctl is made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from guardrun.supervisor.base.own_files import READABLE, write_file
from guardrun.supervisor.cli.base.output import Output

OK, NO, USAGE = 0, 1, 2
"""Exit codes: done; the question's answer is no, or it failed; the command line is wrong."""


class CtlError(Exception):
    """Why a verb can't do its work, and the way out: one sentence for a person. Exit code NO."""


class Call(NamedTuple):
    """One call of a verb, with all that it may know of the world around it."""

    arguments: argparse.Namespace
    environ: Mapping[str, str]
    cwd: Path
    out: Output


def write_named(path: Path, data: bytes, mode: int = READABLE) -> None:
    """Write a file that the user has named, in place of one at most. Raises CtlError."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise CtlError(f"{path} is no plain file: it is left as it is")
        write_file(path, data, mode)
    except OSError as error:
        raise CtlError(f"{path} can't be written: {error.strerror or error}") from None


class Verb(NamedTuple):
    """One verb."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Call], int]
    """Answers the exit code; raises CtlError."""


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """RUN as an optional positional argument, for verbs that take nothing else."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="latest", help="a run's id or its folder (default: latest)"
    )


def add_run_option(parser: argparse.ArgumentParser) -> None:
    """--run RUN, for verbs whose positional argument is something else."""
    parser.add_argument("--run", metavar="RUN", default="latest", help="a run's id or its folder (default: latest)")
