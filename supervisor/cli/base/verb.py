"""What every verb of guardctl is made of: a call and its answer, the run that is meant, the configuration."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.supervisor.base.own_files import (
    READABLE,
    Looks,
    NotOwnError,
    find_fault,
    name_user,
    open_folder,
    write_file,
)
from guardrun.supervisor.cli.base.output import Output
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.config.load import PROJECT_FILES
from guardrun.supervisor.rundir.run_directory import RUN_FILE, RunFile, list_runs, read_run_file

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
    by: str = ""
    """Which program asks in the user's place, for the journal: `by guardctl mcp`."""


PAGE_S = 60.0
"""A person waits for it, and no training does."""


def write_named(path: Path, data: bytes, mode: int = READABLE) -> None:
    """Write a file that the user has named, in place of one at most. Raises CtlError."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise CtlError(f"{path} is no plain file: it is left as it is")
        write_file(path, data, mode)
    except OSError as error:
        raise CtlError(f"{path} can't be written: {error.strerror or error}") from None


def write_page(path: Path, make: Callable[[], str]) -> None:
    """Write a page, made once its templates are there: a busy machine may take seconds for them. Raises CtlError."""
    from guardrun.supervisor.report.elements.html_page import environment

    try:
        environment(PAGE_S)
    except TimeoutError as error:
        raise CtlError(str(error)) from None
    write_named(path, make().encode("utf-8", "replace"))


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


def seconds_up_to(most: float) -> Callable[[str], float]:
    """The type of an argument: seconds, a tenth at least. Raises argparse.ArgumentTypeError."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0.1 <= found <= most:
            raise argparse.ArgumentTypeError(f"expected seconds between 0.1 and {most:g}, not {text!r}")
        return found

    return parse


def this_node(environ: Mapping[str, str]) -> str:
    """By Slurm's name where it runs the job (SLURMD_NODENAME), else the hostname: runs and records know it by that."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


# Runs ---------------------------------------------------------------------------------------------------------------
# Finding a run: by id, by folder, or the latest.


DEFAULT_DIR = "guardrun-runs"
LATEST = "latest"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LISTED = 8


def guard_dir(flag: str | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """Where runs are kept: --guard-dir, else GUARDRUN_DIR, else ./guardrun-runs."""
    return cwd / (flag or environ.get("GUARDRUN_DIR") or DEFAULT_DIR)


def find_run(name: str, directory: Path, cwd: Path) -> Path:
    """The run's folder; of one user's, unless root asks. Raises CtlError that names the runs there are."""
    if "/" in name or name in (".", ".."):
        path = cwd / name
        if os.path.lexists(path / RUN_FILE) or _is_closed(path):
            return _checked(path.resolve())
        if path.name == LATEST or not path.is_dir():
            raise CtlError(f"no run in {path}: there is no such folder")
        raise CtlError(f"no run in {path}: it has no run.json")
    path = directory / name
    if name == LATEST:
        # In a folder that several users share, the link leads to whoever's run is the newest.
        if _is_mine(path) and os.path.lexists(path / RUN_FILE):
            return _checked(path.resolve())
        runs = list_runs(directory)
        newest = next((run for run in runs if _is_mine(run)), runs[0] if runs else None)
        if newest is not None:
            return _checked(newest.resolve())
    elif os.path.lexists(path / RUN_FILE) or _is_closed(path):
        return _checked(directory.resolve() / name)
    raise CtlError(_missing(name, directory, list_runs(directory)))


def named_run(call: Call) -> Path:
    """The folder of the run that the command line names. Raises CtlError."""
    return find_run(call.arguments.run, guard_dir(call.arguments.guard_dir, call.environ, call.cwd), call.cwd)


def whose_else(run_dir: Path) -> str:
    """Of whom this run is, where root looks at somebody else's, and writes nothing there; empty else."""
    if not is_anybodys() or (whose := run_dir.stat().st_uid) == os.geteuid():
        return ""
    return name_user(whose)


def is_anybodys() -> bool:
    """Whether this process reads whoever's runs: root's does, and writes nothing there."""
    return os.geteuid() == 0


def _is_mine(path: Path) -> bool:
    try:
        return is_anybodys() or path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_closed(path: Path) -> bool:
    """Whether it may not be looked into: whose it is has to be said then."""
    return path.is_dir() and not os.access(path, os.X_OK)


def _checked(run_dir: Path) -> Path:
    try:
        os.close(open_folder(run_dir, is_anybodys=is_anybodys()))
    except OSError as error:
        raise CtlError(_why_not(run_dir, error)) from None
    return run_dir


def _why_not(path: Path, error: OSError) -> str:
    if not isinstance(error, NotOwnError):
        return f"{path}: {error.strerror}"
    if "may be written" in (error.strerror or ""):
        way_out = f"if nobody else has been there, chmod -R go-w {shlex.quote(str(path))}"
        return f"{error}: what it says may be somebody else's word; {way_out}"
    return f"{error}: guardctl goes by your own runs; root's shows everybody's"


def _missing(name: str, directory: Path, runs: list[Path]) -> str:
    if not directory.is_dir():
        return f"no runs: {directory} does not exist (say where they are with --guard-dir, or GUARDRUN_DIR)"
    if not runs:
        return f"no runs in {directory} (say where they are with --guard-dir, or GUARDRUN_DIR)"
    names = ", ".join(path.name for path in runs[:_LISTED])
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    return f"no run {name} in {directory}; there are: {names}{more}"


def read_run(run_dir: Path) -> RunFile:
    """run.json. Raises CtlError."""
    try:
        return read_run_file(run_dir, is_anybodys=is_anybodys())
    except OSError as error:
        raise CtlError(_why_not(run_dir / RUN_FILE, error)) from None
    except msgspec.DecodeError as error:
        raise CtlError(f"{run_dir / 'run.json'}: not a run of this version of guardrun ({error})") from None


def is_alive(run: RunFile, node: str) -> bool | None:
    """Whether the run's launcher lives; None where that can't be seen from here (another node)."""
    if run.node != node:
        return None
    try:
        boot_id = BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    if run.boot_id and boot_id and run.boot_id != boot_id:
        return False
    stat = read_stat(run.launcher_pid)
    return stat is not None and stat.state not in "ZX" and stat.start == run.launcher_start


# Configuration ------------------------------------------------------------------------------------------------------
# The configuration that a verb of guardctl goes by.


_WAY_OUT = "use /etc/guardrun/guardrun.toml, or name it with --guard-config"


def read_config(call: Call, *, is_written_by: bool = False) -> Config:
    """What a run started here would get; of that, where root asks, nothing that a stranger has put there.

    is_written_by: it says where something is written: then root goes by no project's files. Raises CtlError.
    """
    file = getattr(call.arguments, "guard_config", None)
    why_no_project = _why_no_project(call.cwd, is_written_by) if os.geteuid() == 0 else ""
    try:
        config = load_config(Path(file) if file else None, {}, call.environ, call.cwd, why_no_project=why_no_project)
    except ConfigError as error:
        raise CtlError("\n".join(error.problems)) from None
    if why_no_project:
        for warning in config.warnings:
            call.out.warn(warning)
    return config


def _why_no_project(cwd: Path, is_written_by: bool) -> str:
    """Why root does not go by the files of the folder that it is called in; empty where it may."""
    if is_written_by:
        return f"where root writes does not depend on the folder that it is called in ({_WAY_OUT})"
    for path in (cwd, *(cwd / name for name in PROJECT_FILES)):
        try:
            found, link = path.stat(), path.lstat()
        except OSError:
            continue
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        why = find_fault(found, Looks(0), within=0o700 if is_sticky else 0o777)
        if why or (path != cwd and link.st_uid != 0):
            return f"{path} {why or 'is a link of somebody else'} ({_WAY_OUT})"
    return ""
