"""The loop that each node has, with a role that only notes what it is called for: real sockets, a real launcher."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from guardrun.hooks.wire.board import Field, board_name, create_board
from guardrun.hooks.wire.messages import CheckpointLoaded
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.node_supervisor import NodeSupervisor
from guardrun.supervisor.wire import control_messages
from tests.report.samples import run_file

TURNS = 200
"""Of a loop that would not end by itself."""


class NotingRole:
    """Ends the loop at the turn after a call. last: its name."""

    is_watching = False
    is_running = False
    may_be_left_out = False

    def __init__(self, last: str) -> None:
        self.last = last
        self.calls: list[str] = []
        self.fed: list[tuple[ev.Event, threading.Thread]] = []
        self.node: NodeSupervisor | None = None

    def register(self, poller: zmq.Poller) -> None:
        self.calls.append("register")

    def due_s(self) -> float | None:
        return None

    def turn(self, ready: dict[object, int]) -> None:
        self.calls.append("turn")
        assert self.node is not None
        self.node.is_over = self.last in self.calls or self.calls.count("turn") >= TURNS

    def sampled(self) -> None:
        self.calls.append("sampled")

    def skipped(self, gap_s: float) -> None:
        self.calls.append("skipped")

    def greeted(self, hello: control_messages.LauncherHello) -> None:
        self.calls.append("greeted")

    def serving(self, message: control_messages.Serving) -> None:
        self.calls.append("serving")

    def give_up_launcher(self) -> None:
        self.calls.append("give_up_launcher")

    def orphaned(self) -> None:
        self.calls.append("orphaned")

    def saved(self, path: str, step: int, wall_s: float, inode: int, attempt: int) -> None:
        self.calls.append("saved")

    def told_of_snapshots(self, text: str) -> None: ...

    def loaded(self, message: CheckpointLoaded) -> None:
        self.calls.append("loaded")

    def folders(self) -> list[str]:
        return []

    def feed(self, event: ev.Event) -> bool:
        self.calls.append("feed")
        self.fed.append((event, threading.current_thread()))
        return True

    def answer(self, peer: bytes, ask: control_messages.Ask) -> None:
        self.calls.append("answer")

    def isolation_settled(self, action: ac.Isolate, how: str = "") -> None:
        self.calls.append("isolation_settled")


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@contextmanager
def node_of(folder: Path, launcher: subprocess.Popen[bytes], role: NotingRole) -> Iterator[NodeSupervisor]:
    """A node's supervisor, before its loop begins."""
    stat = read_stat(launcher.pid)
    assert stat is not None
    sockets = folder / "s"
    sockets.mkdir()
    run = run_file(
        socket_dir=str(sockets),
        clock_mono_s=time.monotonic(),
        launcher_pid=stat.pid,
        launcher_start=stat.start,
        token=uuid.uuid4().hex,
    )
    writer = BackgroundWriter()
    role.node = node = NodeSupervisor(folder, run, writer, role)
    try:
        yield node
    finally:
        node.close()
        writer.close()


def test_each_message_comes_before_the_roles_turn_and_in_order(
    tmp_path: Path, launcher: subprocess.Popen[bytes]
) -> None:
    role = NotingRole(last="answer")
    messages: list[control_messages.ToSupervisor] = [
        control_messages.LauncherHello(pid=launcher.pid, world_size=1, attempt=-1, alive=[], is_first=True),
        control_messages.Serving(seq=1, attempt=0, address="127.0.0.1", port=1),
        control_messages.Started(seq=2, attempt=0, ranks=[], error="no such script"),
        control_messages.Ask(verb="status"),
    ]
    with node_of(tmp_path, launcher, role) as node, zmq.Context() as context:
        assert role.calls == [], "it may still be in the making"
        with context.socket(zmq.DEALER) as peer:
            peer.connect(f"ipc://{node.sockets / control_messages.CONTROL_SOCKET}")
            for message in messages:
                peer.send(msgspec.msgpack.encode(message))
            node.run()
            acknowledged = [peer.recv() for _ in range(3) if peer.poll(60_000)]
    told = [call for call in role.calls if call not in {"sampled", "turn"}]
    assert told == ["register", "greeted", "serving", "feed", "answer"]
    assert role.calls[0] == "register" and role.calls[-1] == "turn"
    assert 0 < role.calls.index("sampled") < role.calls.index("turn")
    assert [event for event, _ in role.fed] == [ev.AttemptNotStarted(attempt=0, error="no such script")]
    seqs = [msgspec.msgpack.decode(data, type=control_messages.Ack).seq for data in acknowledged]
    assert seqs == [0, 1, 2], "each fact, after the role has had it"


def test_what_a_worker_makes_is_fed_on_the_loops_thread(tmp_path: Path, launcher: subprocess.Popen[bytes]) -> None:
    role = NotingRole(last="feed")
    threads: list[threading.Thread] = []

    def fail() -> ev.Event | None:
        threads.append(threading.current_thread())
        raise OSError("gone")

    with node_of(tmp_path, launcher, role) as node:
        node.in_background(fail, lambda error: ev.AttemptNotStarted(attempt=3, error=error))
        node.run()
    here = threading.current_thread()
    assert role.fed == [(ev.AttemptNotStarted(attempt=3, error="OSError('gone')"), here)]
    assert threads != [here]


def test_ranks_of_an_attempt_that_is_to_be_stopped_see_it_on_their_boards(
    tmp_path: Path, launcher: subprocess.Popen[bytes]
) -> None:
    with node_of(tmp_path, launcher, NotingRole(last="feed")) as node:
        create_board(str(node.sockets / board_name(1, 0)))
        node.watch(1, [ev.Rank(global_rank=0, local_rank=0, pid=launcher.pid, node="node-a")], None)
        stopping = []
        for attempt in (0, 1):  # the one before is over
            node.send(control_messages.Stop(attempt=attempt, grace_s=1.0))
            words = node.sampler.boards[0].read()
            assert words is not None
            stopping.append(words[Field.STOPPING])
    assert stopping == [0, 1]


def test_without_its_launcher_the_role_has_the_last_word(tmp_path: Path, launcher: subprocess.Popen[bytes]) -> None:
    role = NotingRole(last="orphaned")
    with node_of(tmp_path, launcher, role) as node:
        launcher.kill()
        launcher.wait()
        node.run()
        assert role.calls == ["register", "orphaned"]
        assert not node.sockets.exists()
