"""Copies on their way from one node's memory to another's: over a real connection, and what is refused there."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from guardrun.hooks.wire.snapshot_index import HOLDS, SHARDED, Record, pack_record
from guardrun.supervisor.collect.host.memory_limits import Limit, MemoryLimits
from guardrun.supervisor.fleet.transport import mirror_stream
from guardrun.supervisor.fleet.transport.curve import KeyPair, make_dealer, make_key_pair
from guardrun.supervisor.fleet.transport.envelopes import MAX_FRAME_BYTES
from guardrun.supervisor.fleet.transport.mirror_stream import (
    CHUNK_BYTES,
    Begin,
    Data,
    End,
    MirrorReceiver,
    MirrorSender,
    Reply,
)
from guardrun.supervisor.saving.mirrors import MirrorMemory
from guardrun.supervisor.wire.listening_addresses import Listen
from tests.support.waiting import wait_until

DATA = os.urandom(CHUNK_BYTES * 5 + 7)


def record(generation: int, data: bytes = DATA, flags: int = HOLDS | SHARDED) -> Record:
    return Record(generation, generation, True, generation, len(data), 1, flags, zlib.crc32(data), "/out/a_rank1.pt")


def keep(memory: MirrorMemory, its: Record, data: bytes = DATA, attempt: int = 0) -> list[str]:
    return [memory.begin(attempt, 1, its), memory.put(data), memory.end()]


@pytest.fixture
def memory() -> Iterator[MirrorMemory]:
    memory = MirrorMemory(4 * len(DATA))
    yield memory
    memory.let_go(1 << 60)


def generations(memory: MirrorMemory, attempt: int = 0) -> list[int]:
    return sorted(copy.record.generation for copy in memory.copies(attempt))


# What is kept ---------------------------------------------------------------------------------------------------------


def test_the_two_newest_are_kept_and_none_that_is_not_whole(memory: MirrorMemory) -> None:
    for generation in (1, 2, 3):
        assert keep(memory, record(generation)) == ["", "", ""]
    assert generations(memory) == [2, 3]
    assert "not what its record says" in keep(memory, record(4), DATA[:-1] + b"!")[2]
    assert generations(memory) == [3], "the older one was written over"
    assert "longer than it says" in keep(memory, record(5), DATA + b"!")[1] and generations(memory) == [3]
    assert memory.begin(0, 1, record(6)) == "" and generations(memory) == [3], "its sender has died"
    assert keep(memory, record(7)) == ["", "", ""] and generations(memory) == [3, 7]
    [slot] = [copy.slot for copy in memory.copies(0) if copy.record.generation == 7]
    assert memory.held(0)[1].read(slot, len(DATA) + 1, 0) == DATA


def test_what_is_refused(memory: MirrorMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.put(b"x") == memory.end() == "it has not begun"
    assert memory.begin(0, 1, record(1, flags=HOLDS)) == "it is no part of a state"
    assert memory.begin(0, -1, record(1)) == memory.begin(0, 1 << 40, record(1)) == "it is no part of a state"
    assert "mirror_gb" in memory.begin(0, 1, record(1)._replace(size_bytes=1 << 60))
    for rank in (1, 2, 3, 4):
        assert memory.begin(0, rank, record(1)) == "" and not memory.put(DATA) and not memory.end()
    assert "mirror_gb" in memory.begin(0, 5, record(1)), "all ranks of it together"
    memory.let_go(3)
    assert memory.copies(0) == [] and memory.begin(2, 1, record(1)) == "that attempt is over"
    monkeypatch.setattr(MemoryLimits, "nearest", lambda *_: Limit(100 * len(DATA), 90 * len(DATA)))
    assert memory.begin(3, 1, record(1)) == "memory is short there", "a tenth stays free"


def test_they_are_the_first_to_go_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    memory = MirrorMemory(1 << 30, said.append)
    keep(memory, record(1))
    held = memory.held(0)[1]
    memory.sample()
    monkeypatch.setattr(MemoryLimits, "nearest", lambda *_: Limit(1 << 30, (1 << 30) - (1 << 30) // 16))
    for _ in range(3):
        memory.sample()
    assert len(said) == 1 and memory.copies(0) == [] and memory.begin(0, 1, record(2)) == "memory is short there"
    with pytest.raises(OSError):
        held.read(0, 1, 0)


# How it gets there ----------------------------------------------------------------------------------------------------


class Outgoing:
    def __init__(self, generation: int, data: bytes = DATA) -> None:
        self.attempt, self.global_rank, self.record = 0, 1, record(generation)
        self._data = data

    def chunks(self) -> Iterator[bytes]:
        for at in range(0, len(self._data), CHUNK_BYTES):
            yield self._data[at : at + CHUNK_BYTES]


@pytest.fixture
def receiver(memory: MirrorMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[MirrorReceiver]:
    monkeypatch.setattr(mirror_stream, "be_nice", lambda: None)  # on a busy machine it would wait for all others
    monkeypatch.setattr(mirror_stream, "HANDSHAKE_MS", 60_000)
    receiver = MirrorReceiver(Listen(addresses=["127.0.0.1"]), memory)
    yield receiver
    receiver.close()


def send(
    receiver: MirrorReceiver, keys: KeyPair, copies: list[Outgoing], rate: float = 1e12
) -> Callable[[], list[str]]:
    """Back comes what has become of them; it ends the sender."""
    waiting, done = list(copies), list[str]()
    sender = MirrorSender(
        ("127.0.0.1", receiver.port),
        keys,
        receiver.keys.public,
        due=lambda: waiting.pop(0) if waiting else None,
        done=lambda copy, why: done.append(why),
        bytes_per_s=rate,
    )

    def end() -> list[str]:
        try:
            wait_until(lambda: len(done) == len(copies), 20.0, "the copies to be there")
        finally:
            sender.close(5.0)
        return done

    return end


def test_copies_get_there_as_fast_as_they_may(receiver: MirrorReceiver, memory: MirrorMemory) -> None:
    keys = make_key_pair()
    receiver.admit(keys.public)
    began_s = time.monotonic()
    rate = 4 * len(DATA)
    assert send(receiver, keys, [Outgoing(1), Outgoing(2, DATA[:-1]), Outgoing(3)], rate)() == [
        "",
        "it is not what its record says",
        "",
    ]
    assert time.monotonic() - began_s >= 3 * len(DATA) / rate - 0.2
    assert generations(memory) == [1, 3]


def test_only_who_was_named_is_let_in(receiver: MirrorReceiver, memory: MirrorMemory) -> None:
    """The head names one key for each node: all others get no word."""
    named, stranger = make_key_pair(), make_key_pair()
    receiver.admit(named.public)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers = [make_dealer(context, keys, receiver.keys.public) for keys in (stranger, named)]
    try:
        for dealer in dealers:
            dealer.connect(f"tcp://127.0.0.1:{receiver.port}")
            dealer.send(msgspec.msgpack.encode(Begin(0, 1, pack_record(record(1)))))
        assert dealers[1].poll(60_000) and msgspec.msgpack.decode(dealers[1].recv(), type=Reply).why == ""
        assert not dealers[0].poll(200)
        for nonsense in (b"", b"\xff" * 1000, msgspec.msgpack.encode([1, 2]), b"\x91" * 100_000):
            dealers[1].send(nonsense)
        dealers[1].send(msgspec.msgpack.encode(Begin(0, 1, b"no record")))
        assert dealers[1].poll(60_000) and "no record" in msgspec.msgpack.decode(dealers[1].recv(), type=Reply).why
        dealers[1].send(msgspec.msgpack.encode(Data(b"x")))
        dealers[1].send(msgspec.msgpack.encode(End()))
        for _ in range(2):
            assert dealers[1].poll(60_000) and msgspec.msgpack.decode(dealers[1].recv(), type=Reply).why
        dealers[1].send(bytes(MAX_FRAME_BYTES + 1))
        assert not dealers[1].poll(200), "it is hung up on"
    finally:
        for dealer in dealers:
            dealer.close(linger=0)
        context.term()
    assert memory.copies(0) == []
    assert send(receiver, named, [Outgoing(1)])() == [""] and generations(memory) == [1]
