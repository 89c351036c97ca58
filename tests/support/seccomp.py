"""A Python script that the kernel refuses some system calls, as container profiles do, and all that it starts.

python tests/support/seccomp.py CALL[,CALL…] EPERM|ENOSYS SCRIPT …
"""

from __future__ import annotations

import ctypes
import errno
import platform
import runpy
import struct
import sys

CALLS = {
    "x86_64": {
        "ptrace": 101, "perf_event_open": 298, "process_vm_readv": 310, "kcmp": 312, "pidfd_send_signal": 424,
        "pidfd_open": 434, "clone3": 435,
    },
    "aarch64": {
        "ptrace": 117, "perf_event_open": 241, "process_vm_readv": 270, "kcmp": 272, "pidfd_send_signal": 424,
        "pidfd_open": 434, "clone3": 435,
    },
}  # fmt: skip
"""The kernel's numbers (unistd_64.h; asm-generic/unistd.h)."""
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_NUMBER, JUMP_IF_EQUAL, ANSWER = 0x20, 0x15, 0x06
"""BPF: load the call's number, compare, return."""
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse(calls: list[str], code: int) -> None:
    """From now on, here and in whatever is started from here. Raises OSError, KeyError for an unknown call."""
    lines = [struct.pack("HBBI", LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        lines.append(struct.pack("HBBI", JUMP_IF_EQUAL, 0, 1, CALLS[platform.machine()][call]))
        lines.append(struct.pack("HBBI", ANSWER, 0, 0, ERRNO | code))
    lines.append(struct.pack("HBBI", ANSWER, 0, 0, ALLOW))
    text = ctypes.create_string_buffer(b"".join(lines))
    program = _Program(len(lines), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


if __name__ == "__main__":
    refuse(sys.argv[1].split(","), getattr(errno, sys.argv[2]))
    del sys.argv[:3]
    runpy.run_path(sys.argv[0], run_name="__main__")
