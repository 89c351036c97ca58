"""RUN/snapshots/NNN-rank-R.pickle: what a device's allocator held, for torch's own viewer (`guardctl memory --device`).

A pickle runs what its writer likes in whoever opens it. So nothing of guardrun opens one: it is copied, byte by byte.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "snapshots"
KEEP, KEEP_BYTES = 16, 1 << 30
MAX_BYTES = 512 << 20
"""Of one."""
_NAME = re.compile(r"(\d{3,8})-rank-(\d{1,8})\.pickle")
_CHUNK_BYTES = 1 << 20


def keep_snapshot(run_dir: Path, snapshot: Path, rank: int) -> dict[str, Any]:
    """Move what a rank has written into the run's folder: its path, or why it is not there. Never raises."""
    try:
        name, size = _copy(run_dir, snapshot, rank)
        told: dict[str, Any] = {"file": str(run_dir / name), "file_bytes": size, "file_trouble": ""}
    except (OSError, ValueError) as error:
        told = {"file": "", "file_bytes": 0, "file_trouble": str(getattr(error, "strerror", None) or error)}
    with suppress(OSError):
        snapshot.unlink(missing_ok=True)
    with suppress(OSError):
        prune_snapshots(run_dir)
    return told


def prune_snapshots(run_dir: Path) -> None:
    """Let the oldest go where there are too many, or they take too much room. Raises OSError."""
    left, room = KEEP, KEEP_BYTES
    for _, name in reversed(_list(run_dir)):
        path = run_dir / FOLDER / name
        left, room = left - 1, room - path.lstat().st_size
        if left < 0 or room < 0:
            path.unlink(missing_ok=True)


def _copy(run_dir: Path, snapshot: Path, rank: int) -> tuple[str, int]:
    """Raises OSError, ValueError; then nothing is left of it."""
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    source = os.open(snapshot, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    number = max((number for number, _ in _list(run_dir)), default=0) + 1
    with open(source, "rb") as file:
        while True:
            path = folder / f"{number:03d}-rank-{rank}.pickle"
            try:
                target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                break
            except FileExistsError:
                number += 1
        size = 0
        try:
            with open(target, "wb") as written:
                while data := file.read(_CHUNK_BYTES):
                    size += len(data)
                    if size > MAX_BYTES:
                        raise ValueError(f"it is longer than {MAX_BYTES >> 20} MB")
                    written.write(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return f"{FOLDER}/{path.name}", size


def _list(run_dir: Path) -> list[tuple[int, str]]:
    """Number and name of each, the oldest first."""
    try:
        names = [path.name for path in (run_dir / FOLDER).iterdir()]
    except OSError:
        names = []
    return sorted((int(m[1]), m[0]) for m in map(_NAME.fullmatch, names) if m)
