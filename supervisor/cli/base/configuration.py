"""The configuration that a verb of guardctl goes by."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from guardrun.supervisor.base.own_files import Looks, find_fault
from guardrun.supervisor.cli.base.verb import Call, CtlError
from guardrun.supervisor.config import Config, ConfigError, load_config
from guardrun.supervisor.config.load import PROJECT_FILES

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
