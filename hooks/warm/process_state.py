"""What a process has that its forks must not share: threads, descriptors, devices, child processes.

`Inspector` is asked after each module's code; what it answers is that module's doing.
"""

from __future__ import annotations

import os
from time import monotonic, sleep

DEVICES = (
    "/dev/nvidia",
    "/dev/dri",
    "/dev/kfd",
    "/dev/infiniband",
    "/dev/accel",
    "/dev/neuron",
    "/dev/hl",
    "/dev/davinci",
)
"""What these begin with is a device, open or mapped."""

HARMLESS_THREADS = ("jemalloc_bg_thd",)
"""pyarrow's allocator gives memory back in it; in a fork, whoever frees does so."""

ENDING_S = 0.5
"""For threads that have been joined: the kernel may have them for a while yet."""


class Inspector:
    """Notes what is new, and whose doing that was; what has gone by the end does no harm."""

    def __init__(self) -> None:
        self._doers: dict[object, str] = dict.fromkeys([*read_threads(), *read_descriptors().items()], "")
        self._began = frozenset(self._doers)

    def note(self, doer: str) -> None:
        """What is new is the doing of this module."""
        for one in (*read_threads(), *read_descriptors().items()):
            if one not in self._doers:
                self._doers[one] = doer

    def judge(self) -> dict[str, str]:
        """Per module, what is left of its doings that no fork may share; by the name "" what is nobody's alone."""
        until_s = monotonic() + ENDING_S
        while any(map(self._is_left, read_threads())) and monotonic() < until_s:
            sleep(0.005)
        found = {}
        for one in (*read_threads(), *read_descriptors().items()):
            if self._is_left(one):
                what = f"it opens {one[1]}"[:200] if isinstance(one, tuple) else "it starts a thread"
                found[self._doers.get(one, "")] = what
        if read_children():
            found[""] = "a process is started"
        if devices := read_mapped_devices():
            found[""] = f"devices are mapped: {', '.join(sorted(devices))[:200]}"
        return found

    def _is_left(self, one: object) -> bool:
        return one not in self._began and not (isinstance(one, str) and is_harmless(one))


def read_threads() -> list[str]:
    """This process's, by number."""
    return os.listdir("/proc/self/task")


def is_harmless(thread: str) -> bool:
    """Whether a library does without this thread in a fork, and says so to the C library (pthread_atfork)."""
    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() in HARMLESS_THREADS
    except OSError:  # It has ended.
        return True


def read_descriptors() -> dict[int, str]:
    """This process's descriptors and what they lead to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
    return found


def read_children() -> bool:
    """Whether this process has any, dead ones among them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def read_mapped_devices() -> frozenset[str]:
    """Paths of devices that are mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if "/dev/" in line}
    return frozenset(path for path in paths if path.startswith(DEVICES))


def read_pss_bytes() -> int:
    """The memory of this process, shared pages divided by those that share them; 0 where it can't be told."""
    try:
        with open("/proc/self/smaps_rollup", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("Pss:")), 0)
    except (OSError, ValueError):
        return 0
