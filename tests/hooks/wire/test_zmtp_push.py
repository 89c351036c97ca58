"""PUSH without libzmq, against libzmq's PULL."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from guardrun.hooks.wire.zmtp_push import MAX_WAITING, Push

DEADLINE_MS = 60_000


class Peer:
    """A PULL socket, as the supervisor binds it."""

    def __init__(self, path: Path) -> None:
        self._context = zmq.Context()
        self._path = path
        self._socket = self._bind()

    def _bind(self) -> zmq.Socket[bytes]:
        bound = self._context.socket(zmq.PULL)
        bound.set(zmq.MAXMSGSIZE, 256 * 1024)
        bound.bind(f"ipc://{self._path}")
        return bound

    def take(self) -> bytes:
        assert self._socket.poll(DEADLINE_MS), "no message came"
        return self._socket.recv()

    def die(self) -> None:
        self._socket.close(0)
        self._path.unlink(missing_ok=True)

    def rise(self) -> None:
        self._socket = self._bind()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="guardrun-test-") as folder:
        yield Path(folder) / "beats"


@pytest.fixture
def peer(path: Path) -> Iterator[Peer]:
    made = Peer(path)
    yield made
    made.close()


def pump_until(push: Push, is_done: object) -> None:
    """Go on sending; the hooks' thread does so at each beat."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < deadline_s and not is_done():  # type: ignore[operator]
        push.pump()
        time.sleep(0.005)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536, 256 * 1024])
def test_a_message_of_any_size_arrives(peer: Peer, path: Path, size: int) -> None:
    push = Push(str(path))
    assert push.send(b"x" * size)
    push.close(60.0)
    assert peer.take() == b"x" * size


def test_the_only_message_of_a_short_life_arrives(peer: Peer, path: Path) -> None:
    for number in range(50):
        push = Push(str(path))
        assert push.send(b"%d" % number)
        push.close(60.0)
        assert peer.take() == b"%d" % number


def test_what_was_said_to_nobody_is_said_to_the_next(peer: Peer, path: Path) -> None:
    push = Push(str(path))
    push.send(b"first")
    assert peer.take() == b"first"
    peer.die()
    assert select.select([push._socket], [], [], DEADLINE_MS / 1000)[0], "libzmq closes its end in a thread of its own"
    for number in range(5):
        assert push.send(b"%d" % number)
    peer.rise()
    heard: list[bytes] = []

    def hear() -> bool:
        if peer._socket.poll(0):
            heard.append(peer._socket.recv())
        return len(heard) == 5

    pump_until(push, hear)
    push.close(0.1)
    assert heard == [b"0", b"1", b"2", b"3", b"4"]


def test_with_nobody_there_sending_costs_little_and_keeps_little(path: Path) -> None:
    push = Push(str(path))
    began_s = time.monotonic()
    taken = sum(push.send(b"x") for _ in range(3 * MAX_WAITING))
    push.close(0.1)
    assert taken == MAX_WAITING
    assert time.monotonic() - began_s < 30.0


def test_a_peer_that_does_not_read_is_not_waited_for(path: Path) -> None:
    """As a supervisor that is stopped: the kernel accepts, nobody answers."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        push = Push(str(path))
        began_s = time.monotonic()
        for _ in range(100):
            push.send(b"x" * 1000)
        push.close(0.1)
        assert time.monotonic() - began_s < 30.0


def test_a_descriptor_that_became_a_file_of_the_scripts_is_left_alone(peer: Peer, path: Path, tmp_path: Path) -> None:
    push = Push(str(path))
    push.send(b"before")
    assert peer.take() == b"before"
    fd = push._socket.fileno()
    with (tmp_path / "checkpoint").open("wb") as file:
        os.dup2(file.fileno(), fd)
        assert push.send(b"after")
        pump_until(push, lambda: peer._socket.poll(0))
        assert peer.take() == b"after"
        push.close(0.1)
        assert os.fstat(fd).st_ino == os.fstat(file.fileno()).st_ino
        os.close(fd)
    assert (tmp_path / "checkpoint").read_bytes() == b""
