"""What the launcher tells its supervisor, whichever process that is by now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.launcher.control.control_channel import Control
from guardrun.supervisor.wire.control_messages import CONTROL_SOCKET, Ack, Exited, LauncherHello, ToSupervisor

PATIENCE_MS = 10_000


def hello(is_first: bool) -> LauncherHello:
    return LauncherHello(pid=1, world_size=2, attempt=0, alive=[], is_first=is_first)


def exited(seq: int) -> Exited:
    return Exited(seq=seq, attempt=0, global_rank=seq, pid=100 + seq, exitcode=-9, at_ns=1)


class Supervisor:
    """One life of it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], sockets: Path) -> None:
        self.socket = context.socket(zmq.ROUTER)
        (sockets / CONTROL_SOCKET).unlink(missing_ok=True)
        self.socket.bind(f"ipc://{sockets / CONTROL_SOCKET}")
        self.launcher = b""

    def hears(self) -> LauncherHello | int:
        """What comes next: a hello, or the number of a fact."""
        assert self.socket.poll(PATIENCE_MS)
        self.launcher, data = self.socket.recv_multipart()
        message = msgspec.msgpack.decode(data, type=ToSupervisor)
        return message if isinstance(message, LauncherHello) else getattr(message, "seq", -1)

    def acknowledges(self, seq: int) -> None:
        self.socket.send_multipart([self.launcher, msgspec.msgpack.encode(Ack(seq=seq))])

    def dies(self) -> None:
        self.socket.close(linger=0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Supervisor]]:
    """Start supervisors, one after the other."""
    context = zmq.Context()
    started: list[Supervisor] = []

    def one() -> Supervisor:
        started.append(Supervisor(context, tmp_path))
        return started[-1]

    yield one
    for supervisor in started:
        supervisor.dies()
    context.term()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    made = Control(tmp_path, hello, session=0)
    yield made
    made.close()


def test_a_new_supervisor_is_told_what_the_last_one_did_not_acknowledge(
    start: Callable[[], Supervisor], control: Control
) -> None:
    first = start()
    control.send_fact(exited)
    control.send_fact(exited)
    assert [first.hears() for _ in range(3)] == [hello(True), 1, 2]
    first.acknowledges(1)
    assert control.socket.poll(PATIENCE_MS)
    assert control.read() == ([], True)
    first.dies()
    control.send_fact(exited)

    second = start()
    control.connect_anew()
    assert [second.hears() for _ in range(3)] == [hello(False), 2, 3]
    second.acknowledges(3)
    assert control.socket.poll(PATIENCE_MS)
    control.read()
    assert not control.has_unacknowledged
