"""Opening a run: a new run directory, or one that is continued, and run.json in it."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from guardrun.launcher.environment import DUMP_FOLDER
from guardrun.launcher.journal_end import read_last_second
from guardrun.launcher.ownership import ENDED_OUTCOMES, Ownership, find_living_owner, read_outcome
from guardrun.launcher.proc import read_boot_id, read_stat
from guardrun.launcher.sockets import remove_socket_folder
from guardrun.supervisor.config import Config
from guardrun.supervisor.render.redact import redact_argv, redact_values
from guardrun.supervisor.rundir import RunFile, read_run_file, write_run_file

DEFAULT_DIR = "guardrun-runs"
LATEST = "latest"

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunIdError(Exception):
    """The user's --guard-run-id can't be used; says why, and the way out."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for, and what run.json tells of it."""

    config: Config
    directory: Path
    """Absolute; runs are folders in it."""
    run_id: str | None
    command: list[str]
    script: list[str]
    """What each rank runs."""
    name: str
    """Short, for the run id: the script's."""
    cwd: Path
    is_torchrun_agent: bool = False
    node: str = ""
    """This node's name, where it is not its usual one: of several guardruns on one host."""


@dataclass
class OpenRun:
    """A run directory that this process owns."""

    path: Path
    file: RunFile
    ownership: Ownership | None
    is_continued: bool = False
    warning: str = ""
    """Said once."""


def node_name(environ: Mapping[str, str]) -> str:
    """This node's name, as the contract has it."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def user_name() -> str:
    """Who runs this; the number where it has no name, as in many containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def choose_directory(flag: Path | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """Where runs are kept: --guard-dir, else GUARDRUN_DIR, else ./guardrun-runs."""
    return cwd / (flag or environ.get("GUARDRUN_DIR") or DEFAULT_DIR)


def make_run_id(name: str, now: datetime) -> str:
    """A readable id that no other run has: time, script, four random hex digits."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-_")[:24] or "run"
    return f"{now:%Y%m%d-%H%M%S}-{slug}-{secrets.token_hex(2)}"


def open_run(wish: Wish, sockets: Path, environ: Mapping[str, str]) -> OpenRun:
    """Make or continue the run directory.

    Where nothing can be written there, the run is kept in a folder beside the sockets instead, and `warning` says so.
    Raises RunIdError; OSError where not even that folder can be written.
    """
    if wish.run_id is not None and (not _RUN_ID.fullmatch(wish.run_id) or wish.run_id == LATEST):
        raise RunIdError(
            f"--guard-run-id {wish.run_id}: expected letters, digits, '.', '_' or '-', at most 100 of them"
        )
    try:
        return _open_in(wish.directory, wish, sockets, environ)
    except OSError as error:
        reason = error.strerror or str(error)
    opened = _open_in(_private_folder(sockets.parent), wish, sockets, environ)
    opened.warning = f"cannot write in {wish.directory} ({reason}): this run is kept in {opened.path}"
    return opened


def _open_in(directory: Path, wish: Wish, sockets: Path, environ: Mapping[str, str]) -> OpenRun:
    directory.mkdir(parents=True, exist_ok=True)
    node = wish.node or node_name(environ)
    if wish.run_id is not None and (directory / wish.run_id).exists():
        opened = _continue_run(directory / wish.run_id, wish, sockets, node)
    else:
        path = _make_folder(directory, wish)
        opened = _create_run(path, wish, sockets, node)
    point_latest(directory, opened.file.run_id)
    return opened


def _private_folder(parent: Path) -> Path:
    """A folder in parent that is this user's alone, the same one each time unless somebody else took its name."""
    folder = parent / f"guardrun-runs-{os.getuid()}"
    _try(lambda: folder.mkdir(mode=0o700))
    is_ours = not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="guardrun-runs-", dir=parent))


def _make_folder(directory: Path, wish: Wish) -> Path:
    while True:
        path = directory / (wish.run_id or make_run_id(wish.name, datetime.now()))
        try:
            path.mkdir(mode=0o700)
            return path
        except FileExistsError:
            if wish.run_id is not None:
                raise RunIdError(f"run {wish.run_id} is being opened by another guardrun") from None


def _create_run(path: Path, wish: Wish, sockets: Path, node: str) -> OpenRun:
    try:
        ownership = Ownership(path)
        (path / DUMP_FOLDER).mkdir(mode=0o700)
        file = _run_file(wish, path.name, sockets, node)
        write_run_file(path, file)
    except OSError:
        _remove(path)
        raise
    return OpenRun(path, file, ownership)


def _remove(path: Path) -> None:
    """Take away what was made of a run directory that cannot be written."""
    for step in (
        (path / DUMP_FOLDER).rmdir,
        *(leftover.unlink for leftover in path.glob(".*")),
        path.rmdir,
    ):
        _try(step)


def _try(step: Callable[[], object]) -> None:
    try:
        step()
    except OSError:
        pass


def _continue_run(path: Path, wish: Wish, sockets: Path, node: str) -> OpenRun:
    way_out = "choose another --guard-run-id"
    try:
        before = read_run_file(path)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        raise RunIdError(f"{path} exists and holds no run of guardrun's: {way_out}") from None
    outcome, may_go_on = read_outcome(path)
    if outcome in ENDED_OUTCOMES and not may_go_on:
        raise RunIdError(f"run {wish.run_id} has ended ({outcome.replace('_', ' ')}): {way_out}")
    if owner := find_living_owner(path, before, node):
        raise RunIdError(f"run {wish.run_id} is running, {owner}: {way_out}, or end it first")
    try:
        ownership = Ownership(path)
    except BlockingIOError:
        raise RunIdError(f"run {wish.run_id} is running, owned by another guardrun: {way_out}") from None
    if before.node == node:
        remove_socket_folder(Path(before.socket_dir))  # a guardrun that was killed could not
    file = _run_file(wish, before.run_id, sockets, node)
    file.session = before.session + 1
    # The pause counts: what happened before it keeps its date. A wall clock that was set back turns nothing back.
    file.clock_base_s = max(read_last_second(path), file.created_wall_s - before.created_wall_s)
    file.created_wall_s = before.created_wall_s
    (path / DUMP_FOLDER).mkdir(mode=0o700, exist_ok=True)
    _try(lambda: (path / "summary.json").rename(path / f"summary.{before.session}.json"))
    write_run_file(path, file)
    return OpenRun(path, file, ownership, is_continued=True)


def _run_file(wish: Wish, run_id: str, sockets: Path, node: str) -> RunFile:
    config = wish.config
    me = read_stat(os.getpid())
    return RunFile(
        run_id=run_id,
        node=node,
        user=user_name(),
        command=redact_argv(wish.command),
        cwd=str(wish.cwd),
        script=redact_argv(wish.script),
        launcher_pid=os.getpid(),
        launcher_start=me.start if me else 0,
        boot_id=read_boot_id(),
        created_wall_s=time.time(),
        clock_mono_s=time.monotonic(),
        socket_dir=str(sockets),
        token=secrets.token_hex(8),
        settings=msgspec.structs.replace(
            config.settings(), is_torchrun_agent=wish.is_torchrun_agent, is_named=wish.run_id is not None
        ),
        checkpoint_dir=str(wish.cwd / config.checkpoint.dir) if config.checkpoint.dir else "",
        checkpoint_format=config.checkpoint.format,
        notify_command=config.notify.command,
        agent="torchrun" if wish.is_torchrun_agent else "guardrun",
        config=redact_values({**config.as_dict(), "origins": config.origins}),
        slurm_job=_slurm_job(),
    )


def _slurm_job() -> str:
    """This guardrun's job in Slurm; empty where there is none, or its variables make no sense."""
    if not os.environ.get("SLURM_JOB_ID"):
        return ""
    from guardrun.slurm.environment import SlurmEnvironmentError, read_slurm

    try:
        here = read_slurm(os.environ)
    except SlurmEnvironmentError:
        return ""
    return here.job if here is not None else ""


def point_latest(directory: Path, run_id: str) -> None:
    """Make `latest` a link to the run, never for a moment missing. Nothing depends on it: failing is no error."""
    temporary = directory / f".{LATEST}.{os.getpid()}"
    try:
        temporary.symlink_to(run_id)
        temporary.replace(directory / LATEST)
    except OSError:
        _try(temporary.unlink)
