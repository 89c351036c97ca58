"""Faults for the scripts beside this file, planted by plan: no torch, no guardrun.

A plan is `ATTEMPT:FAULT@STEP:RANK`, several of them separated by commas; ATTEMPT `*` means in every attempt, RANK
`*` every rank. A step is reached once an attempt, so that a fault is planted once in each attempt that it names.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
RANK = os.environ.get("RANK", "0")
KEPT: list[int] = []
"""Descriptors that nobody closes."""
KEPT_MEMORY: list[bytearray] = []


class Planted(NamedTuple):
    attempt: str
    fault: str
    step: int
    rank: str


def parse_plan(text: str) -> list[Planted]:
    """Raises ValueError where it is no plan."""
    planted = []
    for item in filter(None, text.split(",")):
        attempt, fault, rank = item.split(":")
        name, step = fault.split("@")
        planted.append(Planted(attempt, name, int(step), rank))
    return planted


def due(plan: list[Planted], step: int) -> list[str]:
    """What this rank is to suffer at this step of this attempt."""
    return [p.fault for p in plan if p.step == step and p.attempt in ("*", ATTEMPT) and p.rank in ("*", RANK)]


def due_now(when: str) -> list[str]:
    """Likewise for FILE:FAULT: what rank 1 is to suffer in attempt 0 once the file is there."""
    file, _, fault = when.rpartition(":")
    return [fault] if file and RANK == "1" and ATTEMPT == "0" and os.path.exists(file) else []


def let_go() -> None:
    """Wait until gloo's threads, which DDP keeps beyond destroy_process_group, have let go of their last work.

    One that is still at it when the interpreter finalises ends the process by SIGABRT (pytorch/pytorch#179291).
    """
    while any(map(at_work, Path("/proc/self/task").iterdir())):
        time.sleep(0.001)


def at_work(task: Path) -> bool:
    """Whether this thread is one of gloo's that doesn't wait. One that ends while it is looked at has let go."""
    try:
        name, _, state = (task / "stat").read_text().rpartition(")")
    except OSError:
        return False
    return "gloo" in name and state.split()[0] != "S"


def suffer(fault: str, seconds: float, others: dict[str, Callable[[], Any]]) -> None:
    """Have it happen. others: faults that only the calling script knows."""
    known: dict[str, Callable[[], Any]] = {
        "block": fetch_vocabulary_update,
        "deadlock": take_two_locks,
        "stand": stand_until_told,
        "spin": wait_for_flag,
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "stop_briefly": lambda: stop_briefly(0.7),
        "gil": lambda: ctypes.PyDLL(None).sleep(1000),
        "gc": collect_garbage,
        "pause": lambda: time.sleep(seconds),
        "shards": lambda: open_shards(3000),
        "leak": leak_files,
        "hoard": lambda: hold_memory(lambda turn: min(turn, 860), room_mib=900),
        "cache": lambda: hold_memory(lambda turn: turn % 120),
        "fit": lambda: fit_natively(seconds),
        "search": lambda: search_natively(seconds),
        "compile": lambda: compile_kernels(seconds),
        "raise": load_sample,
        "import": lambda: __import__("no_such_tokenizer"),
        "syntax": lambda: compile("def broken(:\n", "augmentations.py", "exec"),
        "segv": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "free": free_the_middle,
        "bus": touch_past_end,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "exit": lambda: os._exit(3),
        "sys_exit": lambda: give_up("no such data set"),
        "interrupt": interrupt,
        "broken_pipe": write_to_nobody,
        "exit_0": lambda: sys.exit(0),
        "oom": allocate,
    }
    {**known, **others}[fault]()


def give_up(why: str) -> None:
    sys.exit(why)


def interrupt() -> None:
    """Nobody pressed Ctrl-C."""
    raise KeyboardInterrupt


def write_to_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"loss 1.5")


def fetch_vocabulary_update() -> None:
    """A request without a timeout."""
    time.sleep(1000)


def fit_natively(seconds: float) -> None:
    """One call of C code that lets go of the GIL and computes, as a fit of numpy's or sklearn's does."""
    lasts(seconds, 20_000, lambda count: hashlib.pbkdf2_hmac("sha256", b"weights", b"seed", count))


def search_natively(seconds: float) -> None:
    """One call of C code that keeps the GIL and computes, as a regular expression over a whole corpus does."""
    lasts(seconds, 1_000_000, lambda count: sum(itertools.repeat(1, count)))


def lasts(seconds: float, count: int, work: Callable[[int], object]) -> None:
    """Have `work` done in one call that takes about so long."""
    began_s = time.thread_time()
    work(count)
    work(int(count * seconds / (time.thread_time() - began_s)))


def take_two_locks() -> None:
    """Each of two threads holds what the other wants."""
    mine, its, both_hold_one = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        with its:
            both_hold_one.wait()
            mine.acquire()

    threading.Thread(target=other, daemon=True).start()
    with mine:
        both_hold_one.wait()
        its.acquire()


def stand_until_told() -> None:
    """A call that may take any time: it returns when somebody opens the named pipe `go`."""
    os.mkfifo("go")
    with open("go", "rb"):
        pass


def open_shards(count: int) -> None:
    """As a shuffle buffer does: once, and they stay open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    KEPT.extend(os.open(__file__, os.O_RDONLY) for _ in range(count))


def leak_files() -> None:
    """Another 20 each second, by the clock, while training goes on."""
    began_s = time.monotonic()

    def leak() -> None:
        more = 0
        while True:
            wanted = int(20 * (time.monotonic() - began_s))
            open_shards(wanted - more)
            more = wanted
            time.sleep(1 / 20)

    open_shards(2000)
    threading.Thread(target=leak, daemon=True).start()


def wait_for_flag() -> None:
    """A condition that never becomes true."""
    polls = 0
    while not os.environ.get("FLAG_THAT_NOBODY_SETS"):
        polls += 1


def hold_memory(mib: Callable[[int], int], room_mib: int = 600) -> None:
    """So many MiB in each turn, a twelfth of a second long, while training goes on; of so much that the process has."""
    pieces: list[bytearray] = []
    began_s = time.monotonic()

    def hold() -> None:
        while True:
            turn = int(12 * (time.monotonic() - began_s))
            pieces[:] = pieces[: mib(turn)]
            pieces.extend(bytearray(b"x") * (1 << 20) for _ in range(len(pieces), mib(turn)))
            time.sleep(1 / 20)

    limit_memory(room_mib)
    threading.Thread(target=hold, daemon=True).start()


def limit_memory(room_mib: int) -> None:
    """So much more than it has now may this process have."""
    status = Path("/proc/self/status").read_text()
    data_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    limit = (data_kib << 10) + (room_mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def keep_more(mib: int) -> None:
    """So many MiB more than the last time; where there are none left, the end, as the kernel makes it."""
    try:
        KEPT_MEMORY.append(bytearray(b"x") * (mib << 20))
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


def stop_briefly(seconds: float) -> None:
    code = f"import os, time; time.sleep({seconds}); os.kill({os.getpid()}, {int(signal.SIGCONT)})"
    waker = subprocess.Popen([sys.executable, "-S", "-c", code])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()


def collect_garbage() -> None:
    """Collections of many objects: seconds of one step, and on a busy machine until guardrun has heard of them."""
    gc.disable()
    cells: list[Any] = []
    for _ in range(4_000_000):
        cells.append([cells])
    known, least = told_collections(), time.thread_time() + 2.0  # Waiting for a CPU is none of a collection's own time.
    while time.thread_time() < least or (told_collections() == known and time.thread_time() < least + 20):
        gc.collect()
    gc.enable()


def told_collections() -> int:
    """Of how many collections the journals beside this script's folder tell."""
    return sum(file.read_bytes().count(b'"gc_held"') for file in Path("guardrun-runs").glob("*/events.jsonl"))


def compile_kernels(seconds: float) -> None:
    """What a compile looks like: processes that come, compute and go, while the rank waits for them."""
    end = time.monotonic() + seconds
    code = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    while time.monotonic() < end:
        subprocess.run([sys.executable, "-S", "-c", code], check=True)


def load_sample() -> None:
    raise ValueError("bad sample 17")


def free_the_middle() -> None:
    """glibc says what is wrong, and aborts."""
    block = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).free(ctypes.c_void_p(ctypes.addressof(block) + 24))


def touch_past_end() -> None:
    """A mapped file that has shrunk: what a full /dev/shm does, too."""
    with open(f"shrinking-{os.getpid()}", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        pages = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        os.unlink(file.name)
        pages[0] = 1


def allocate() -> None:
    """Ask for memory until the kernel refuses, in its way."""
    held = []
    while True:
        held.append(b"x" * (16 << 20))


def note(pid: int) -> None:
    """Leave a pid for `alive_of_before`."""
    with open(f"pids-{ATTEMPT}", "a") as file:
        file.write(f"{pid}\n")


def alive_of_before() -> list[str]:
    """Pids noted in attempts before this one whose processes live."""
    notes = [path for path in Path().glob("pids-*") if int(path.name.split("-")[1]) < int(ATTEMPT)]
    return [pid for path in notes for pid in path.read_text().split() if _is_alive(pid)]


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
