"""One question to a server in a rank: answers that are good, bad, or none."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guardrun.supervisor.collect.collectives.worker_server import find_obstacle, request


@contextmanager
def server(path: Path, *answers: bytes, hangs: bool = False) -> Iterator[str]:
    """Answer one connection after another with these bytes; then stay silent, if hangs."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    over = threading.Event()

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(answer)
                except OSError:
                    pass
                if hangs:
                    over.wait(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nContent-Type: x\r\n\r\n".encode() + body


def ask(path: str, timeout_s: float = 5.0) -> bytes:
    return request(path, "GET", "/handler/", time.monotonic() + timeout_s)


def test_an_answer_is_read_whole(tmp_path: Path) -> None:
    body = os.urandom(3_000_000)
    with server(tmp_path / "s", http(body)) as path:
        assert ask(path) == body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "ended early"),
        (b"HTTP/1.1 200 OK\r\n", "ended early"),
        (http(b"short", length=1000), "ended early"),
        (http(b"", status="404 Not Found"), "status 404"),
        (http(b"", length=100_000_000), "95 MB long"),
        (b"hello\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nbody without a length", "no HTTP"),
        (b"x" * 100_000, "no HTTP"),
    ],
)
def test_a_bad_answer_is_refused(tmp_path: Path, answer: bytes, error: str) -> None:
    with server(tmp_path / "s", answer) as path, pytest.raises(ValueError, match=error):
        ask(path)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", http(b"part", length=1000)])
def test_a_silent_server_is_left(tmp_path: Path, answer: bytes) -> None:
    with server(tmp_path / "s", answer, hangs=True) as path:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(path, timeout_s=0.2)
        assert time.monotonic() - began < 30


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask(str(tmp_path / "none"))


@contextmanager
def listening(path: str) -> Iterator[tuple[int, int]]:
    """A listener of this process, as (descriptor, inode)."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        yield listener.fileno(), os.fstat(listener.fileno()).st_ino


def test_nobody_connects_where_the_descriptor_is_another(tmp_path: Path) -> None:
    pid = os.getpid()
    with listening(str(tmp_path / "s")) as (fd, inode):
        assert find_obstacle(pid, fd, inode) == ""
        assert "has closed" in find_obstacle(pid, fd, inode + 1)
    assert "has closed" in find_obstacle(pid, fd, inode)
