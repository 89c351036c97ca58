"""Opening a run: a new run directory, or one that is continued, and run.json in it."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import secrets
import shlex
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from guardrun.launcher.base.processes import read_boot_id, read_stat
from guardrun.launcher.base.rank_environment import DUMP_FOLDER
from guardrun.launcher.base.socket_folder import remove_socket_folder
from guardrun.launcher.creation.run_continuation import (
    Left,
    Ownership,
    Way,
    decide,
    find_living_owner,
    find_touching_owner,
    read_outcome,
)
from guardrun.supervisor.base.own_files import NotOwnError, keeps_modes, make_folders, open_folder
from guardrun.supervisor.base.redaction import redact_argv, redact_values
from guardrun.supervisor.config import Config
from guardrun.supervisor.rundir.journal_end import Began, read_began, read_end, read_last_second
from guardrun.supervisor.rundir.run_directory import (
    RUN_FILE,
    RunFile,
    check_run_dir,
    read_run_file,
    write_run_file,
)

DEFAULT_DIR = "guardrun-runs"
LATEST = "latest"

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _OpenToAll(Exception):
    """A guard directory in which everybody may exchange what others have put there."""


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
    except _OpenToAll as error:
        reason = str(error)
    except OSError as error:
        why = error.strerror or str(error)
        if wish.run_id is not None and os.path.lexists(wish.directory / wish.run_id):
            # Elsewhere it would be a new run: begun anew, it would write over this one's checkpoints.
            raise RunIdError(
                f"run {wish.run_id} is not continued: cannot write in {wish.directory / wish.run_id} ({why})"
            ) from None
        reason = f"cannot write in {wish.directory} ({why})"
    opened = _open_in(_private_folder(sockets.parent, wish.directory), wish, sockets, environ)
    opened.warning = f"{reason}: this run is kept in {opened.path}"
    return opened


def _open_in(directory: Path, wish: Wish, sockets: Path, environ: Mapping[str, str]) -> OpenRun:
    make_folders(directory)
    _keep_names(directory)
    is_continued = wish.run_id is not None and os.path.lexists(directory / wish.run_id)
    if why := _why_not_trusted(directory):
        if is_continued:
            raise RunIdError(f"run {wish.run_id} is not continued: {why}")
        raise _OpenToAll(why)
    node = wish.node or node_name(environ)
    if wish.run_id is not None and is_continued:
        opened = _continue_run(directory / wish.run_id, wish, sockets, node)
    else:
        path = _make_folder(directory, wish)
        opened = _create_run(path, wish, sockets, node)
    point_latest(directory, opened.file.run_id)
    return opened


def _keep_names(directory: Path) -> None:
    """Let members of a project rename no runs but their own, in a folder that an earlier guardrun made for them all.

    In one that the user has named, others may be meant to.
    """
    found = directory.stat()
    is_made = directory.name == DEFAULT_DIR and found.st_uid == os.geteuid()
    if is_made and found.st_mode & stat.S_IWGRP and not found.st_mode & (stat.S_IWOTH | stat.S_ISVTX):
        _try(lambda: directory.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISVTX))


def _why_not_trusted(directory: Path) -> str:
    """Why nobody's runs are safe in a guard directory; empty where they are.

    Where everybody may rename what others have put there, a run directory can be exchanged while it is used. A group
    that may is trusted as far as the user has trusted it: with the runs there while they live.
    """
    mode = directory.stat().st_mode
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX or not keeps_modes(directory):
        return ""
    return f"anybody may rename what lies in {directory} (chmod o-w {directory}, or chmod +t {directory})"


def _private_folder(parent: Path, directory: Path) -> Path:
    """A folder in parent that is this user's alone, the same one each time unless somebody else took its name.

    For each guard directory another one: an id tells a run from the others of its guard directory, and from no others.
    """
    folder = parent / f"guardrun-runs-{os.getuid()}"
    _try(lambda: folder.mkdir(mode=0o700))
    try:
        os.close(open_folder(folder))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="guardrun-runs-", dir=parent))
    return folder / hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest()[:12]


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
        if (path / RUN_FILE).exists():  # by another guardrun, that found the folder empty and has ended since
            ownership.release()
            raise BlockingIOError
        (path / DUMP_FOLDER).mkdir(mode=0o700, exist_ok=True)
        file = _run_file(wish, path.name, sockets, node)
        write_run_file(path, file)
    except BlockingIOError:
        raise RunIdError(f"run {path.name} is being opened by another guardrun") from None
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
    is_strange = f"{path} exists and holds no run of guardrun's: {way_out}"
    try:
        check_run_dir(path)
        before, torn = _read_before(path)
    except NotOwnError as error:
        raise RunIdError(_not_own(error, path, way_out)) from None
    except NotADirectoryError:
        raise RunIdError(is_strange) from None
    left = _read_left(path, has_record=before is not None)
    way = decide(left)
    if way is Way.REFUSE_STRANGE:
        raise RunIdError(is_strange)
    if way is Way.REFUSE_ENDED:
        raise RunIdError(f"run {wish.run_id} has ended ({left.outcome.replace('_', ' ')}): {way_out}")
    owner = find_living_owner(path, before, node) if before else find_touching_owner(path)
    if owner:
        raise RunIdError(f"run {wish.run_id} is running, {owner}: {way_out}, or end it first")
    if way is Way.BEGIN:
        return _create_run(path, wish, sockets, node)
    try:
        ownership = Ownership(path)
    except BlockingIOError:
        raise RunIdError(f"run {wish.run_id} is running, owned by another guardrun: {way_out}") from None
    if before and before.node == node:
        remove_socket_folder(Path(before.socket_dir))  # a guardrun that was killed could not
    file = _run_file(wish, path.name, sockets, node)
    began = Began(before.session, before.created_wall_s) if before else read_began(path, file.created_wall_s)
    file.session = began.session + 1
    # The pause counts: what happened before it keeps its date. A wall clock that was set back turns nothing back.
    file.clock_base_s = max(read_last_second(path), file.created_wall_s - began.wall_s)
    file.created_wall_s = began.wall_s
    (path / DUMP_FOLDER).mkdir(mode=0o700, exist_ok=True)
    _try(lambda: (path / "summary.json").rename(path / f"summary.{began.session}.json"))
    if torn:
        _try(lambda: (path / RUN_FILE).rename(path / f"{RUN_FILE}.torn"))
    write_run_file(path, file)
    return OpenRun(path, file, ownership, is_continued=True, warning=torn)


def _read_left(path: Path, *, has_record: bool) -> Left:
    """What an earlier guardrun left there."""
    names = frozenset(os.listdir(path))
    outcome, may_go_on = read_outcome(path)
    if not outcome:
        outcome, may_go_on = _read_journals_outcome(path)
    return Left(names, has_record, stat.S_IMODE(path.stat().st_mode) == 0o700, outcome, may_go_on)


def _read_journals_outcome(path: Path) -> tuple[str, bool]:
    """The same by the journal: all was killed, or the disk was full, before summary.json was written."""
    # Its modules are of no use to a run that is begun.
    from guardrun.supervisor.engine.recovery.run_summary import outcome_so_far
    from guardrun.supervisor.rundir.journal import recover

    try:
        engine, result = recover(path)
    except (OSError, msgspec.MsgspecError):  # it cannot be read
        return "", False
    if result.is_other:
        return read_end(path)
    return outcome_so_far(engine.state), engine.state.may_go_on


def _read_before(path: Path) -> tuple[RunFile | None, str]:
    """run.json; None, and what is said of that, where a run's was torn: its journal and its checkpoints go on.

    Raises NotOwnError or NotADirectoryError where there is no run.
    """
    try:
        return read_run_file(path), ""
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        return None, f"{path / RUN_FILE} {what}: the run goes on, by its journal and its checkpoints"


def _not_own(error: NotOwnError, path: Path, way_out: str) -> str:
    sentence = f"run {path.name} is not continued: {error}, and what lies there says what is loaded and run"
    if "may be written" in (error.strerror or ""):
        return f"{sentence}. If nobody else has been there, chmod -R go-w {shlex.quote(str(path))}; else {way_out}"
    return f"{sentence}: {way_out}"


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
    from guardrun.slurm.client.job_environment import SlurmEnvironmentError, read_slurm

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
