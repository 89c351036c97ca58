"""A mount that has taken a request and never answers it: who asked is in uninterruptible wait, even for SIGKILL.

A real FUSE file system. Its daemon agrees to the protocol (include/uapi/linux/fuse.h) and then only reads; what the
kernel has handed over can't be taken back. (tests/support/deadmount.py is the milder case: nobody takes the request.)
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2
MAX_REQUEST = 1 << 17
FUSE_INIT = 26
_IN = struct.Struct("<IIQQIIII")
_INIT_OUT = struct.Struct("<IiQ" + "IIIIHHIIHHI7I")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def stuck_mount(folder: Path) -> Iterator[Path]:
    """Mount it at folder. Whoever asks for a file of it waits, unkillably, until this is left."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    daemon = threading.Thread(target=_serve, args=(device, stop), name="stuck-mount")
    try:
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        _check(_libc.mount(b"guardrun-test", bytes(folder), b"fuse", 0, options.encode()))
        daemon.start()
        try:
            yield folder
        finally:
            os.eventfd_write(stop, 1)
            daemon.join()
            _check(_libc.umount2(bytes(folder), MNT_DETACH))
    finally:
        os.close(stop)
        os.close(device)  # The kernel takes it for the daemon's end, and lets everybody go.


def _serve(device: int, stop: int) -> None:
    while stop not in (ready := select.select([device, stop], [], [])[0]):
        assert ready
        request = os.read(device, MAX_REQUEST)
        _length, opcode, unique, *_ = _IN.unpack_from(request)
        if opcode == FUSE_INIT:
            os.write(device, _INIT_OUT.pack(_INIT_OUT.size, 0, unique, 7, 31, 0, 0, 1, 1, 4096, *[0] * 11))
