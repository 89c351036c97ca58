"""What ends a rank. The comment `# here: NAME` marks the line that a good verdict names."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from pathlib import Path


def load_sample() -> None:
    raise ValueError("bad sample 17")  # here: exception


def load_sample_beside_the_deaf() -> None:
    raise ValueError("bad sample 17")  # here: sigterm_deaf


def import_tokenizer() -> None:
    import no_such_tokenizer  # type: ignore[import-not-found]  # here: import_error  # noqa: F401


def leave() -> None:
    sys.exit(3)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def follow_pointer() -> None:
    ctypes.string_at(0)  # here: segfault


def give_up() -> None:
    os.abort()  # here: abort


def touch_past_end() -> None:
    with open(f"shrinking-{os.getpid()}", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        pages = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        os.unlink(file.name)
        pages[0] = 1  # here: bus_error


def fill_cache() -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), resource.RLIM_INFINITY))
    cache = []
    while True:
        cache.append(bytearray(16 << 20))  # here: memory


def tear_newest() -> None:
    """A crash in the middle of a save, as it looks afterwards."""
    newest = max(Path("out").glob("ckpt_*.pt"), key=lambda path: path.stat().st_mtime_ns)
    os.truncate(newest, newest.stat().st_size // 2)
    kill()


def leave_daemon_and_die() -> None:
    """Forked twice, in a session of its own: what exporters and servers that scripts start do."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(600)
        os._exit(0)
    time.sleep(0.3)
    kill()


def fsdp_raise() -> None:
    raise ValueError("bad activation")  # here: fsdp_exception


def worker_raise() -> None:
    raise ValueError("bad sample 17")  # here: worker_exception
