"""Where the token lies while `guardctl web` runs: a file that its user alone can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from guardrun.supervisor.base.own_files import SECRET, open_folder, write_own

FOLDER = "guardrun-web"


def write_token(environ: Mapping[str, str], port: int, token: str) -> Path:
    """Write it to the user's runtime folder, else to one of the user's in the folder for temporary files.

    Raises OSError where neither can be had.
    """
    path = _folder(environ) / f"{port}.token"
    write_own(path, f"{token}\n".encode(), SECRET)
    return path


def remove_token(path: Path, token: str) -> None:
    """Remove it, if it is still this one's. Never raises."""
    with suppress(OSError):
        if path.read_text().strip() == token:
            path.unlink()


def _folder(environ: Mapping[str, str]) -> Path:
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        with suppress(OSError):
            return _closed(Path(runtime) / FOLDER)
    with suppress(OSError):  # somebody else may have that name already
        return _closed(Path(tempfile.gettempdir()) / f"{FOLDER}-{os.geteuid()}")
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}-"))


def _closed(folder: Path) -> Path:
    """This folder, made where there is none: the user's own, which nobody else can enter. Raises OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    opened = open_folder(folder)
    try:
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)
    return folder
