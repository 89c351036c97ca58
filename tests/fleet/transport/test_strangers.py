"""Who does not belong on the coordinator's port: counted, told nothing, and in nobody's way."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest
import zmq

from guardrun.supervisor.fleet.transport import link as link_module
from guardrun.supervisor.fleet.transport.envelopes import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    Join,
    Order,
    Pulse,
    Report,
    Welcome,
)
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE
from tests.fleet.ends import Bench, kinds, opened


@pytest.fixture
def ends() -> Iterator[Bench]:
    """A coordinator to which `good` has joined."""
    with opened() as bench:
        bench.open_hub(handshake_ms=500)
        bench.open_link("good")
        bench.joined("good")
        yield bench


@pytest.fixture
def dealer(ends: Bench) -> Iterator[Callable[[bool], zmq.Socket[bytes]]]:
    """Make sockets that hold the run's key (or none) and speak as they like."""
    context = zmq.Context()
    open_sockets: list[zmq.Socket[bytes]] = []

    def make(has_key: bool = True) -> zmq.Socket[bytes]:
        made = context.socket(zmq.DEALER)
        open_sockets.append(made)
        made.set(zmq.SNDHWM, 0)
        if has_key:
            made.curve_serverkey = ends.server.public.encode()
            made.curve_publickey = ends.client.public.encode()
            made.curve_secretkey = ends.client.secret.encode()
        made.connect(f"tcp://127.0.0.1:{ends.hub.port}")
        return made

    yield make
    for one in open_sockets:
        one.close(linger=0)
    context.term()


def assert_good_is_served(ends: Bench) -> None:
    link = ends.links[0]
    assert ends.hub.is_connected("good")
    count = len(ends.bodies("good"))
    link.send(b"still here")
    ends.until(lambda: len(ends.bodies("good")) == count + 1 and not link.has_waiting)
    assert ends.hub.nodes == ["good"]


def join(node: str = "x", **more: object) -> bytes:
    fields = {"protocol": PROTOCOL, "slot": -1, "incarnation": 5, "connection": 1, "hub": 0, "received": 0}
    return msgspec.msgpack.encode(Join(node=node, sent_ns=1, **(fields | more)))  # type: ignore[arg-type]  # on purpose


def test_nobody_without_a_key(ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]) -> None:
    peer = dealer(False)
    peer.send(join())
    ends.until(lambda: ends.hub.counters.strangers)
    assert_good_is_served(ends)
    assert not peer.poll(100)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100_000,
        bytes(range(256)),
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(60),
    ],
    ids=["http", "ones", "all bytes", "null"],
)
def test_garbage_is_told_no_more_than_a_greeting(ends: Bench, data: bytes) -> None:
    before = ends.hub.counters.strangers  # `good` itself, where it was too slow the first time
    with closing(socket.create_connection(("127.0.0.1", ends.hub.port))) as stranger:
        stranger.settimeout(60)
        stranger.sendall(data)
        ends.turns(0.8)
        answer = b""
        try:
            while part := stranger.recv(4096):
                answer += part
        except ConnectionResetError:
            pass
    assert len(answer) <= 64, "ZMTP's greeting, which every ZeroMQ socket begins with"
    ends.until(lambda: ends.hub.counters.strangers == before + 1)
    assert_good_is_served(ends)


def test_who_says_nothing_is_cut_off(ends: Bench) -> None:
    with closing(socket.create_connection(("127.0.0.1", ends.hub.port))) as stranger:
        stranger.setblocking(False)
        began_s = time.monotonic()

        def is_cut() -> bool:
            try:
                return not stranger.recv(100)
            except BlockingIOError:
                return False

        ends.until(is_cut)
        assert time.monotonic() - began_s < 30
    assert_good_is_served(ends)


def test_a_thousand_connections_at_once(ends: Bench) -> None:
    strangers = [socket.create_connection(("127.0.0.1", ends.hub.port)) for _ in range(1000)]
    try:
        assert_good_is_served(ends)
        ends.until(lambda: ends.hub.counters.accepted > 1000)
    finally:
        for stranger in strangers:
            stranger.close()
    assert_good_is_served(ends)


def fds_in_use() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_strangers_cannot_take_all_descriptors_and_nodes_still_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from one address, faster than they are sent away; nodes come from another."""
    monkeypatch.setattr(link_module, "WELCOME_S", link_module.MAX_WELCOME_S)
    with opened() as ends:
        ends.open_hub(max_crowd=60, listen=EVERYWHERE)
        ends.open_link("first")
        ends.joined("first")
        before = fds_in_use()
        strangers: list[socket.socket] = []
        try:
            for round_ in range(10):
                for _ in range(50):
                    address = ("127.0.0.9", 0)
                    strangers.append(socket.create_connection(("127.0.0.1", ends.hub.port), source_address=address))
                ends.turn()
                if round_ == 5:
                    ends.open_link("second")
            ends.until(lambda: ends.hub.counters.accepted >= 500)
            ends.joined("first", "second")
            ends.until(lambda: fds_in_use() - before - len(strangers) < 100)
            assert ends.hub.counters.sent_away >= 400
            assert ends.links[1].counters.connections == 1, "it was not taken for one of them"
            assert kinds(ends.seen) == [("first", "Joined"), ("second", "Joined")]
        finally:
            for stranger in strangers:
                stranger.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x91" * 5000,
        b"\xdf\xff\xff\xff\xff",
        msgspec.msgpack.encode([99, 1, 2]),
        msgspec.msgpack.encode(Welcome(1, 0, 1.0, 0, 0.0, 0.0)),
        msgspec.msgpack.encode(Order(1, b"x")),
        join(node=""),
        join(node="n" * 300),
        join(incarnation=0),
        join(incarnation="a"),
        join(info=[1]),
        b"\xff\xfe garbage \x00",
    ],
)
def test_malformed_frames_of_a_peer_are_counted(
    ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]], frame: bytes
) -> None:
    peer = dealer(True)
    peer.send(frame)
    ends.until(lambda: ends.hub.counters.malformed)
    assert_good_is_served(ends)


def test_frames_before_the_join_are_strays_and_after_it_a_join_is_malformed(
    ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]
) -> None:
    peer = dealer(True)
    peer.send(msgspec.msgpack.encode(Report(1, b"early", 0, 0)))
    peer.send(msgspec.msgpack.encode(Pulse(0, 0)))
    peer.send(join())
    peer.send(join())
    peer.send_multipart([b"two", b"parts"])
    peer.send(msgspec.msgpack.encode(Report(1, b"in time", 0, 0)))
    peer.send(b"\xc1")
    ends.until(lambda: ends.hub.counters.malformed >= 3)
    assert ends.hub.counters.late_frames == 2
    assert ends.bodies("x") == [b"in time"]


def test_random_frames_break_nothing(ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]) -> None:
    source = random.Random(5)
    good = [join(), msgspec.msgpack.encode(Report(3, b"body", 4, 0)), msgspec.msgpack.encode(Pulse(1, 99))]
    peer = dealer(True)
    peer.send(join(node="y"))
    for _ in range(3000):
        frame = bytearray(source.choice(good))
        for _ in range(source.randrange(1, 4)):
            frame[source.randrange(len(frame))] = source.randrange(256)
        peer.send(bytes(frame[: source.randrange(len(frame) + 1)]))
    peer.send(msgspec.msgpack.encode(Report(1 << 60, b"the end", 4, 0)))
    ends.until(lambda: b"the end" in ends.bodies("y"))
    link = ends.links[0]
    link.send(b"still here")
    ends.until(lambda: ends.bodies("good") == [b"still here"])


def test_a_frame_over_the_limit_costs_the_connection(ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]) -> None:
    peer = dealer(True)
    peer.send(join())
    ends.until(lambda: ("x", "Joined") in kinds(ends.seen))
    peer.send(bytes(MAX_FRAME_BYTES + 1))
    ends.until(lambda: ("x", "Dropped") in kinds(ends.seen))
    assert not ends.hub.is_connected("x")
    assert ends.hub.is_connected("good")


def test_a_flood_of_frames_does_not_hold_up_the_loop(ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]) -> None:
    peer = dealer(True)
    for _ in range(50_000):
        peer.send(b"\xc1" * 20)
    longest_s = 0.0
    deadline_s = time.monotonic() + 60
    while ends.hub.counters.malformed < 50_000:
        assert time.monotonic() < deadline_s
        began_s = time.thread_time()
        ends.turn(0)
        longest_s = max(longest_s, time.thread_time() - began_s)
    assert longest_s < 1.0, "a turn takes a bounded number of frames"
    assert_good_is_served(ends)


def test_another_protocol_is_refused_with_what_to_do(ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]) -> None:
    peer = dealer(True)
    peer.send(join(protocol=PROTOCOL + 1))
    ends.until(lambda: ends.hub.counters.joins_refused)
    assert b"use the same guardrun on all nodes" in peer.recv()
    assert_good_is_served(ends)


def test_no_more_nodes_than_the_bound() -> None:
    with opened() as ends:
        ends.open_hub(max_nodes=1)
        ends.open_link("a")
        ends.joined("a")
        second = ends.open_link("b")
        ends.until(lambda: ends.got[second])
        assert ends.hub.nodes == ["a"]


def test_an_older_connection_that_is_read_late_changes_nothing(
    ends: Bench, dealer: Callable[[bool], zmq.Socket[bytes]]
) -> None:
    newer, older = dealer(True), dealer(True)
    newer.send(join(connection=2))
    ends.until(lambda: "x" in ends.hub.nodes)
    older.send(join(connection=1))
    ends.until(lambda: ends.hub.counters.late_frames)
    ends.hub.send("x", b"order")
    newer.recv()
    assert msgspec.msgpack.decode(newer.recv(), type=Order).body == b"order"
    assert not older.poll(50)
