"""Copies in the memory of several nodes: what becomes of them when nodes are lost, late, full, or see another disk."""

from __future__ import annotations

import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.snapshot_index import (
    HOLDS,
    NAME,
    SHARDED,
    SIZE_BYTES,
    Record,
    pack_header,
    pack_record,
    record_offset,
    sum_of,
)
from guardrun.supervisor.fleet.coordinator import fleet_snapshots
from guardrun.supervisor.fleet.coordinator.fleet_snapshots import FleetSnapshots
from guardrun.supervisor.fleet.protocol.messages import SnapshotAnswer, SnapshotOrder
from guardrun.supervisor.saving.snapshot_files import Written
from guardrun.supervisor.saving.snapshot_memory import SnapshotMemory
from guardrun.supervisor.saving.snapshots import NodeSnapshots, make_memory
from guardrun.supervisor.wire.control_messages import ToSupervisor

DATA = b"what torch.save wrote" * 1000


class Loop:
    """One thread, as a supervisor's loop."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def post(self, call: Callable[[], object]) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()


class Clock:
    """The run's seconds are the host's."""

    def now(self) -> float:
        return fleet_snapshots.time.monotonic()

    def at_ns(self, ns: int) -> float:
        return ns / 1e9

    def wall_s(self, at_s: float) -> float:
        return at_s


class Node:
    """One, with one rank."""

    def __init__(self, name: str, rank: int, loop: Loop, answer: Callable[[SnapshotAnswer], object]) -> None:
        self.name, self.rank = name, rank
        self.fds = [os.memfd_create(f"{NAME}-0-{rank}-{part}", os.MFD_CLOEXEC) for part in ("index", "0", "1")]
        os.ftruncate(self.fds[0], SIZE_BYTES)
        os.pwrite(self.fds[0], pack_header((self.fds[1], self.fds[2])), 0)
        self.words = [0] * len(Field)
        self.words[Field.PID], self.words[Field.SNAPSHOT_INDEX] = os.getpid(), self.fds[0] + 1
        board = SimpleNamespace(read=lambda: self.words, write=self.words.__setitem__)
        node: Any = SimpleNamespace(
            run_file=SimpleNamespace(
                node=name, socket_dir="/nowhere", config={"checkpoint": {"snapshot_gb": 1.0, "snapshot_steps": 2}}
            ),
            clock=Clock(),
            post=loop.post,
            ingest=SimpleNamespace(attempt=0),
            sampler=SimpleNamespace(boards={rank: board}),
            terminal=SimpleNamespace(print_line=lambda *_: None),
        )
        self.node = node
        self.memory: SnapshotMemory = make_memory(node)
        self.orders = NodeSnapshots(node, self.memory, answer)

    def first(self, path: str, flags: int = 0) -> None:
        self.words[Field.SNAPSHOT_FIRST] = 1
        self.words[Field.SNAPSHOT_NAMED] = sum_of(Record(1, 1, True, 1, 0, 1, flags, 0, path))

    def keep(self, at: int, path: str, flags: int = HOLDS, data: bytes = DATA) -> None:
        slot = at % 2
        os.pwrite(self.fds[1 + slot], data, 0)
        record = Record(at, at, True, at, len(data) if flags & HOLDS else 0, at, flags, zlib.crc32(data), path)
        os.pwrite(self.fds[0], pack_record(record), record_offset(slot))

    def close(self) -> None:
        self.orders.close()
        self.memory.close()
        for fd in self.fds:
            os.close(fd)


@dataclass
class Job:
    """Two nodes, the first of which leads."""

    loop: Loop
    lost: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    """They are connected, and what they are asked arrives later, by `hear`."""
    waiting: list[tuple[str, SnapshotOrder]] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = {
            name: Node(name, rank, self.loop, lambda answer, name=name: self.head.answered(name, answer))
            for rank, name in enumerate(("head", "node1"))
        }
        ranks = {one.rank: SimpleNamespace(rank=SimpleNamespace(node=one.name)) for one in self.nodes.values()}
        state = SimpleNamespace(attempt=SimpleNamespace(number=0, ranks=ranks))
        context: Any = SimpleNamespace(engine=SimpleNamespace(state=state))
        hub = SimpleNamespace(is_connected=lambda name: name not in self.lost, heard_s=lambda name: Clock().now())
        self.head = FleetSnapshots(self.nodes["head"].node, context, cast(Any, hub), self._send, 100)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def _send(self, name: str, order: SnapshotOrder) -> None:
        self.sent.append((name, order.what))
        if name in self.deaf:
            self.waiting.append((name, order))
        else:
            self.nodes[name].orders.obey(order)

    def hear(self) -> None:
        for name, order in self.waiting:
            self.loop.post(lambda name=name, order=order: self.nodes[name].orders.obey(order))

    def sample(self) -> None:
        for node in self.nodes.values():
            node.memory.sample()
            node.orders.sample()

    def write(self, past_step: int = 0) -> Written:
        return self.head.write_newest(past_step, ())[1]


@pytest.fixture
def job() -> Iterator[Job]:
    loop = Loop()
    job = Job(loop)
    try:
        yield job
    finally:
        job.head.close()
        loop.close()
        for node in job.nodes.values():
            node.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def keep_replicas(job: Job, folder: Path, holders: tuple[str, ...] = ("head", "node1")) -> None:
    for node in job.nodes.values():
        node.first(str(folder / "1.pt"))
        for at in (4, 5):
            node.keep(at, str(folder / f"{at}.pt"), HOLDS if node.name in holders else 0)
    job.sample()


def keep_shards(job: Job, folder: Path, ats: tuple[int, ...] = (4, 5)) -> None:
    for node in job.nodes.values():
        node.first(str(folder / f"1_rank{node.rank}.pt"), SHARDED)
        for at in ats:
            node.keep(at, str(folder / f"{at}_rank{node.rank}.pt"), HOLDS | SHARDED)
    job.sample()


def test_replicas_are_written_once_by_the_head_or_in_its_stead(job: Job, tmp_path: Path) -> None:
    assert not job.head.has_any
    keep_replicas(job, tmp_path)
    assert job.head.has_any
    assert job.write(past_step=5) == Written() and names(tmp_path) == []
    assert job.write().paths == (str(tmp_path / "5.pt"),) and names(tmp_path) == ["5.pt"]
    assert ("node1", "prepare") not in job.sent
    os.pwrite(job["head"].fds[2], b"!", 100)
    assert job.write().paths == (str(tmp_path / "5.guardrun.pt"),), "node1's: the head's is damaged"
    assert (tmp_path / "5.guardrun.pt").read_bytes() == DATA


def test_a_lost_nodes_ranks_are_known_by_what_they_said_first(job: Job, tmp_path: Path) -> None:
    keep_replicas(job, tmp_path)
    job.lost.add("node1")
    assert job.write().paths == (str(tmp_path / "5.pt"),)
    assert ("node1", "list") not in job.sent


def test_what_a_lost_node_never_said_is_not_guessed(job: Job, tmp_path: Path) -> None:
    keep_replicas(job, tmp_path)
    job.head.answered("node1", SnapshotAnswer(ask=0, attempt=0))
    job.lost.add("node1")
    assert job.write().why == "no copy of step 5 is known of rank 1" and names(tmp_path) == []
    other = sum_of(Record(1, 1, True, 1, 0, 1, 0, 0, str(tmp_path / "1_of_rank1.pt")))
    job.head.answered("node1", SnapshotAnswer(ask=0, attempt=0, firsts={1: (1, other)}))
    assert "rank 1 named another path than rank 0" in job.write().why
    job.head.answered("node1", SnapshotAnswer(ask=0, attempt=0, idle={1: 5}))
    assert job.write().step == 5, "it has never called"


def test_shards_are_written_by_all_or_not_at_all(job: Job, tmp_path: Path) -> None:
    keep_shards(job, tmp_path)
    (tmp_path / "5_rank1.pt").write_bytes(b"of a save that was cut short")
    written = job.write()
    assert written.paths == tuple(str(tmp_path / f"5_rank{rank}.guardrun.pt") for rank in (0, 1))
    assert (tmp_path / "5_rank1.pt").read_bytes() == b"of a save that was cut short"
    for path in written.paths:
        os.unlink(path)
    os.pwrite(job["node1"].fds[2], b"!", 100)
    written = job.write()
    assert written.step == 4 and written.why == "step 5: node1: the copy of rank 1 is damaged"
    job.lost.add("node1")
    assert job.write(past_step=4).why == "no copy of step 5 is known of rank 1"
    assert not [name for name in names(tmp_path) if "tmp" in name]


def test_nodes_at_different_steps_go_back_to_the_newest_that_both_have(job: Job, tmp_path: Path) -> None:
    keep_shards(job, tmp_path)
    job["head"].keep(6, str(tmp_path / "6_rank0.pt"), HOLDS | SHARDED)
    assert job.write().step == 5
    job["head"].keep(7, str(tmp_path / "7_rank0.pt"), HOLDS | SHARDED)
    assert not job.write().paths


def test_a_node_that_does_not_answer_costs_a_while_and_late_orders_write_nothing(job: Job, tmp_path: Path) -> None:
    """The cut-off node and the head never write one name. Long: its answer is waited for."""
    keep_replicas(job, tmp_path)
    job.deaf.add("node1")
    assert job.write().paths == (str(tmp_path / "5.pt"),)
    os.unlink(tmp_path / "5.pt")
    order = SnapshotOrder(ask=7, attempt=0, what="prepare", parts=[(1, 1, 5)], by_s=Clock().now() - 1)
    answers: list[SnapshotAnswer] = []
    done = threading.Event()

    def answer(told: SnapshotAnswer) -> None:
        answers.append(told)
        done.set()

    late = NodeSnapshots(job["node1"].node, job["node1"].memory, answer)
    late.obey(order)
    assert done.wait(60) and answers[0].why == "it came too late"
    late.close()
    job.hear()
    assert names(tmp_path) == []


def test_what_is_dropped_is_not_named(job: Job, tmp_path: Path) -> None:
    keep_replicas(job, tmp_path)
    done: queue.SimpleQueue[SnapshotAnswer] = queue.SimpleQueue()
    node = NodeSnapshots(job["node1"].node, job["node1"].memory, done.put)
    by_s = Clock().now() + 60
    node.obey(SnapshotOrder(ask=7, attempt=0, what="prepare", parts=[(1, 1, 5)], by_s=by_s))
    assert done.get(timeout=60).why == "" and len(names(tmp_path)) == 1
    node.obey(SnapshotOrder(ask=7, attempt=0, what="drop"))
    node.obey(SnapshotOrder(ask=8, attempt=0, what="name", number=0, by_s=by_s))
    assert [done.get(timeout=60).why for _ in range(2)] == ["", "nothing was prepared"]
    assert names(tmp_path) == []
    node.obey(SnapshotOrder(ask=9, attempt=0, what="prepare", parts=[(1, 1, 4), (9, 0, 1)], by_s=by_s))
    assert done.get(timeout=60).why == "the copy of rank 1 is not there any more", "only what it holds itself"
    node.close()
    assert names(tmp_path) == []


def test_a_disk_of_another_nodes_own_is_told(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head could not choose what it does not see."""
    monkeypatch.setattr(fleet_snapshots, "SEEN_S", 0.0)
    keep_shards(job, tmp_path, (5,))
    seen = fleet_snapshots._wait_for
    monkeypatch.setattr(fleet_snapshots, "_wait_for", lambda path: seen(path.replace("rank1", "elsewhere")))
    assert "is not seen on head" in job.write().why and names(tmp_path) == []


def test_only_the_runs_coordinator_may_ask(job: Job) -> None:
    """Its orders come by its own encrypted connection: what a node's local sockets take knows none."""
    order = msgspec.msgpack.encode(SnapshotOrder(ask=1, attempt=0, what="prepare"))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(order, type=ToSupervisor)
