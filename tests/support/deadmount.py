"""A mount that does not answer: a real FUSE file system whose daemon never reads a request."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2  # linux: include/linux/fs.h

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def dead_mount(folder: Path) -> Iterator[Path]:
    """Mount it at a folder. Whoever touches it waits until this is left, or is killed."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        _check(_libc.mount(b"guardrun-test", bytes(folder), b"fuse", 0, options.encode()))
        try:
            yield folder
        finally:
            _check(_libc.umount2(bytes(folder), MNT_DETACH))
    finally:
        os.close(device)  # the kernel takes it for the daemon's end, and lets everybody go
