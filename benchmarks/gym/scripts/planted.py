"""What the script is made to suffer, by GYM_PLAN: `NAME@STEP:RANKS:SECONDS:ATTEMPTS`, several separated by commas; in
these ranks (`0+1`), once an attempt, at the first chance from that step on; ATTEMPTS is `first` or `every`; SECONDS is
how long what ends takes.

The comment `# here: NAME` marks the line that a good verdict names.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gym.scripts.diary import ATTEMPT, RANK, note

SECONDS = 0.0
"""Of what happens now."""


@dataclass
class Planting:
    """One item of the plan."""

    name: str
    step: int
    ranks: frozenset[int]
    seconds: float
    every_attempt: bool
    is_done: bool = False

    @property
    def is_meant(self) -> bool:
        """Say whether it is for this rank and attempt."""
        return RANK in self.ranks and (self.every_attempt or ATTEMPT == 0)


def parse_plan(text: str) -> list[Planting]:
    """Raises ValueError where it is no plan."""
    plan = []
    for item in filter(None, text.split(",")):
        what, ranks, seconds, attempts = item.split(":")
        name, step = what.split("@")
        numbers = frozenset(int(number) for number in ranks.split("+"))
        plan.append(Planting(name, int(step), numbers, float(seconds), attempts == "every"))
    return plan


PLAN = parse_plan(os.environ.get("GYM_PLAN", ""))


def find(name: str) -> Planting | None:
    """The first of that name that is still to come in this attempt, whatever the rank."""
    return next((p for p in PLAN if p.name == name and not p.is_done and (p.every_attempt or ATTEMPT == 0)), None)


def is_due(name: str, step: int) -> bool:
    """Say whether it is to happen here and now; true once for each planting."""
    global SECONDS
    due = next((p for p in PLAN if p.name == name and p.is_meant and not p.is_done and step >= p.step), None)
    if due is None:
        return False
    due.is_done = True
    SECONDS = due.seconds
    note("planted", step)
    return True


def is_going_on(name: str, step: int) -> bool:
    """The same for what happens in every step from its own on."""
    global SECONDS
    going_on = next((p for p in PLAN if p.name == name and p.is_meant and step >= p.step), None)
    if going_on is None:
        return False
    SECONDS = going_on.seconds
    if not going_on.is_done:
        going_on.is_done = True
        note("planted", step)
    return True


def suffer(place: str, step: int) -> None:
    """Have happen what is due at this place of the script."""
    for name in {planting.name for planting in PLAN}:
        where, what = PLACES.get(name, ("", None))
        if what is not None and where == place and is_due(name, step):
            what()
        where, what = EACH_STEP.get(name, ("", None))
        if what is not None and where == place and is_going_on(name, step):
            what()


# Hangs


def fetch_vocabulary_update() -> None:
    time.sleep(3600)  # here: sleep


def update_statistics() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()  # here: lock


def ask_feature_store() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"GET /features HTTP/1.0\r\n\r\n")
        connection.recv(1)  # here: socket


def read_commands() -> None:
    os.mkfifo("commands")
    with open("commands") as commands:  # here: fifo
        commands.read()


def augment_in_threads() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 3600).result()  # here: thread_pool


def run_converter() -> None:
    subprocess.run(["sleep", "3600"], check=True)  # here: child


def fetch_references() -> None:
    time.sleep(3600)  # here: eval


def upload_checkpoint() -> None:
    time.sleep(3600)  # here: upload


def wait_for_licence() -> None:
    time.sleep(3600)  # here: init


def wait_for_scheduler() -> None:
    time.sleep(3600)  # here: all_hang


def parse_sample() -> None:
    time.sleep(3600)  # here: poison


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def call_driver() -> None:
    ctypes.PyDLL(None).sleep(3600)  # here: gil


def drain_stream() -> None:
    deque(itertools.count(), maxlen=0)  # here: gil_loop


def wait_for_flag() -> None:
    polls = 0
    while not os.environ.get("FLAG_THAT_NOBODY_SETS"):  # here: spin
        polls += 1


class _Endless:
    def read(self, size: int = -1, /) -> bytes:
        return b"x" * 64

    def write(self, chunk: bytes, /) -> int:
        return len(chunk)


def copy_shard() -> None:
    shutil.copyfileobj(_Endless(), _Endless())  # here: spin_copy


async def _poll_flag() -> None:
    while not os.environ.get("FLAG_THAT_NOBODY_SETS"):  # here: spin_asyncio
        await asyncio.sleep(0)


def poll_flag() -> None:
    asyncio.run(_poll_flag())


def collect_garbage() -> None:
    gc.disable()
    cells: list[Any] = []
    for _ in range(1_500_000):
        cells.append([cells])
    end_s = time.monotonic() + 3.0
    while time.monotonic() < end_s:
        gc.collect()
    gc.enable()


def leave_early() -> None:
    sys.exit(0)


def extra_barrier() -> None:
    import torch.distributed as dist

    dist.barrier()  # here: extra_barrier


def fsdp_fetch() -> None:
    time.sleep(3600)  # here: fsdp_sleep


def groups_fetch() -> None:
    time.sleep(3600)  # here: groups_sleep


def receive_activations() -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(8), src=0)  # here: groups_recv


def read_shard() -> None:
    time.sleep(3600)  # here: worker_sleep


forked_lock = threading.Lock()


def log_sample() -> None:
    forked_lock.acquire()  # here: worker_lock


# Crashes


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


# Decoys


def pause() -> None:
    time.sleep(SECONDS)


def build_index() -> None:
    """Plain Python at work, in many small functions."""
    end_s = time.monotonic() + SECONDS
    index: dict[str, list[int]] = {}
    number = 0
    while time.monotonic() < end_s:
        number += 1
        for word in _words(number):
            index.setdefault(_stem(word), []).append(number)
        if number % 2000 == 0:
            index = _merge(index)
            time.sleep(0.05)


def _words(number: int) -> list[str]:
    return [f"{number:x}{suffix}" for suffix in ("ing", "ed", "s", "")]


def _stem(word: str) -> str:
    return word[:3].rstrip("s")


def _merge(index: dict[str, list[int]]) -> dict[str, list[int]]:
    return {word: sorted(set(numbers))[-50:] for word, numbers in index.items()}


_WORK = "import time\nend = time.monotonic() + {0}\nwhile time.monotonic() < end: sum(range(20000)); time.sleep(0.002)"


def compile_kernels() -> None:
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        subprocess.run([sys.executable, "-S", "-c", _WORK.format(1.5)], check=True)


def run_tokenizer() -> None:
    subprocess.run([sys.executable, "-S", "-c", _WORK.format(SECONDS)], check=True)


def collect_briefly() -> None:
    cells: list[Any] = []
    for _ in range(200_000):
        cells.append([cells])
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        gc.collect()


def stop_briefly() -> None:
    code = f"import os, time; time.sleep({SECONDS}); os.kill({os.getpid()}, {int(signal.SIGCONT)})"
    waker = subprocess.Popen([sys.executable, "-S", "-c", code])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()


def download() -> None:
    """50 kB a second, from a server that is slow and well."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            end_s = time.monotonic() + SECONDS
            while time.monotonic() < end_s:
                connection.sendall(b"x" * 5000)
                time.sleep(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(server.getsockname()) as connection:
        while connection.recv(1 << 16):
            pass
    thread.join()
    server.close()


def write_for_long() -> None:
    end_s = time.monotonic() + SECONDS
    with open("large.bin", "wb") as file:
        while time.monotonic() < end_s:
            file.write(os.urandom(1 << 19))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.1)


_last_pause_s = 0.05


def slow_down() -> None:
    """By a third a step, up to SECONDS; then it is over."""
    global _last_pause_s
    _last_pause_s *= 1.33
    if _last_pause_s < SECONDS:
        time.sleep(_last_pause_s)


PLACES: dict[str, tuple[str, Callable[[], object] | None]] = {
    "sleep": ("data", fetch_vocabulary_update),
    "lock": ("data", update_statistics),
    "socket": ("data", ask_feature_store),
    "fifo": ("data", read_commands),
    "thread_pool": ("data", augment_in_threads),
    "child": ("data", run_converter),
    "eval": ("eval", fetch_references),
    "upload": ("saved", upload_checkpoint),
    "init": ("start", wait_for_licence),
    "all_hang": ("data", wait_for_scheduler),
    "poison": ("data", parse_sample),
    "stop": ("data", stop),
    "groups_stop": ("data", stop),
    "gil": ("data", call_driver),
    "gil_loop": ("data", drain_stream),
    "spin": ("data", wait_for_flag),
    "spin_copy": ("data", copy_shard),
    "spin_asyncio": ("data", poll_flag),
    "gc": ("data", collect_garbage),
    "early_exit": ("data", leave_early),
    "extra_barrier": ("data", extra_barrier),
    "fsdp_sleep": ("layer", fsdp_fetch),
    "groups_sleep": ("data", groups_fetch),
    "groups_recv": ("data", receive_activations),
    "worker_sleep": ("item", read_shard),
    "worker_stop": ("item", stop),
    "exception": ("data", load_sample),
    "sigterm_deaf": ("data", load_sample_beside_the_deaf),
    "import_error": ("start", import_tokenizer),
    "exit_code": ("data", leave),
    "killed": ("data", kill),
    "groups_killed": ("data", kill),
    "worker_killed": ("item", kill),
    "segfault": ("data", follow_pointer),
    "abort": ("data", give_up),
    "bus_error": ("data", touch_past_end),
    "memory": ("data", fill_cache),
    "torn": ("saved", tear_newest),
    "leftover": ("data", leave_daemon_and_die),
    "fsdp_exception": ("layer", fsdp_raise),
    "worker_exception": ("item", worker_raise),
    "worker_lock": ("item", log_sample),
    "long_save": ("save", write_for_long),
    "compile": ("data", compile_kernels),
    "prepare": ("data", build_index),
    "data_pause": ("data", pause),
    "idle_pause": ("data", pause),
    "short_gc": ("data", collect_briefly),
    "brief_stop": ("data", stop_briefly),
    "tokenizer": ("data", run_tokenizer),
    "download": ("data", download),
    "worker_pause": ("item", pause),
}
"""What happens once: where in train.py, and what. What needs the training's own objects is in train.py itself."""

EACH_STEP: dict[str, tuple[str, Callable[[], object] | None]] = {
    "slower_steps": ("data", slow_down),
    "uneven": ("data", pause),
    "slow_workers": ("item", pause),
}
