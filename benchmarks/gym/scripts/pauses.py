"""What takes long and is well: each lasts `seconds`."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any


def pause(seconds: float) -> None:
    time.sleep(seconds)


def build_index(seconds: float) -> None:
    """Plain Python at work, in many small functions."""
    end_s = time.monotonic() + seconds
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


def compile_kernels(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        subprocess.run([sys.executable, "-S", "-c", _WORK.format(1.5)], check=True)


def run_tokenizer(seconds: float) -> None:
    subprocess.run([sys.executable, "-S", "-c", _WORK.format(seconds)], check=True)


def collect_briefly(seconds: float) -> None:
    cells: list[Any] = []
    for _ in range(200_000):
        cells.append([cells])
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        gc.collect()


def stop_briefly(seconds: float) -> None:
    waker = subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])  # a Python would take longer
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()


def download(seconds: float) -> None:
    """50 kB a second, from a server that is slow and well."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            end_s = time.monotonic() + seconds
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


def write_for_long(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    with open("large.bin", "wb") as file:
        while time.monotonic() < end_s:
            file.write(os.urandom(1 << 19))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.1)


_last_pause_s = 0.05


def slow_down(seconds: float) -> None:
    """By a third a step, up to seconds; then it is over."""
    global _last_pause_s
    _last_pause_s *= 1.33
    if _last_pause_s < seconds:
        time.sleep(_last_pause_s)
