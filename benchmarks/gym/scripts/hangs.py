"""What stops training for good. The comment `# here: NAME` marks the line that a good verdict names."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any


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
