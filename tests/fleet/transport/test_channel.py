"""Numbered messages without a socket: nothing lost, nothing twice, nothing without end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.fleet.transport.envelopes import OVERHEAD_BYTES, Channel

LARGE = 1 << 30


def taken(channel: Channel) -> list[bytes]:
    return [message.body for message in channel.hand_out()]


def test_everything_is_handed_out_once_and_again_after_a_rewind() -> None:
    channel = Channel(LARGE)
    channel.send(b"a")
    channel.send(b"b")
    assert taken(channel) == [b"a", b"b"]
    channel.send(b"c")
    assert [(m.seq, m.body) for m in channel.hand_out()] == [(3, b"c")]
    assert taken(channel) == []
    channel.acknowledged(1)
    channel.rewind()
    assert taken(channel) == [b"b", b"c"]
    channel.acknowledged(3)
    channel.rewind()
    assert taken(channel) == []
    assert not channel.has_waiting
    assert channel.waiting_bytes == 0


def test_what_could_not_be_sent_comes_again() -> None:
    channel = Channel(LARGE)
    for body in (b"a", b"b", b"c"):
        channel.send(body)
    messages = channel.hand_out()
    channel.put_back(messages[1].seq)
    assert taken(channel) == [b"b", b"c"]


def test_a_newer_state_takes_the_place_of_the_older() -> None:
    channel = Channel(LARGE)
    channel.send(b"status 1", replaces="status")
    channel.send(b"event")
    channel.send(b"status 2", replaces="status")
    assert taken(channel) == [b"event", b"status 2"]
    channel.send(b"status 3", replaces="status")  # 2 is under way
    assert taken(channel) == [b"status 3"]
    channel.acknowledged(3)
    channel.rewind()
    assert taken(channel) == [b"status 3"]
    assert channel.lost == 0


def test_at_the_bound_the_oldest_events_go_first() -> None:
    channel = Channel(4 * (OVERHEAD_BYTES + 10))
    channel.send(b"state".ljust(10), replaces="key")
    for number in range(5):
        channel.send(b"event %d" % number + b"   ")
    assert [body.strip() for body in taken(channel)] == [b"state", b"event 2", b"event 3", b"event 4"]
    assert channel.lost == 2
    channel.send(bytes(4 * OVERHEAD_BYTES))  # alone over it
    assert (taken(channel), channel.lost) == ([], 6 + 0)


def test_only_states_left() -> None:
    channel = Channel(2 * (OVERHEAD_BYTES + 1))
    for key in "abc":
        channel.send(key.encode(), replaces=key)
    assert taken(channel) == [b"b", b"c"]


def test_what_was_never_sent_is_not_acknowledged() -> None:
    channel = Channel(LARGE)
    channel.send(b"a")
    channel.acknowledged(7)
    assert channel.has_waiting
    channel.acknowledged(0)
    assert channel.has_waiting


def test_duplicates_are_dropped() -> None:
    channel = Channel(LARGE)
    assert [channel.receive(seq) for seq in (1, 2, 2, 5, 4, 6)] == [True, True, False, True, False, True]
    assert (channel.received, channel.duplicates) == (6, 2)
    channel.reset()
    assert channel.receive(1)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["", "", "", "x", "y"])),
        st.tuples(st.just("carry"), st.integers(0, 5)),
        st.tuples(st.just("answer"), st.just(0)),
        st.tuples(st.just("break"), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(actions, st.sampled_from([LARGE, 6 * OVERHEAD_BYTES]))
def test_events_arrive_once_and_in_order_whatever_breaks(actions: list[tuple[str, int | str]], limit: int) -> None:
    """A connection carries in order and loses its end when it breaks."""
    sender, receiver = Channel(limit), Channel(LARGE)
    on_the_way: list[tuple[int, bytes]] = []
    sent: list[bytes] = []
    got: list[bytes] = []

    def carry(count: int) -> None:
        for _ in range(min(count, len(on_the_way))):
            seq, body = on_the_way.pop(0)
            if receiver.receive(seq):
                got.append(body)

    for number, (action, argument) in enumerate([*actions, ("break", 0), ("send", "x"), ("carry", 1000)]):
        if action == "send":
            body = b"%d %s" % (number, str(argument).encode())
            sent.append(body)
            sender.send(body, str(argument))
        elif action == "carry":
            carry(int(argument))
        elif action == "answer":
            sender.acknowledged(receiver.received)
        else:
            carry(int(argument))
            on_the_way.clear()
            sender.rewind()
            sender.acknowledged(receiver.received)
        on_the_way += sender.hand_out()
    carry(1000)
    assert got == [body for body in sent if body in set(got)], "in order, and none twice"
    missing = [body for body in sent if body.endswith(b" ") and body not in got]
    assert len(missing) <= sender.lost
    if limit == LARGE:
        assert sender.lost == 0
    for key in (b" x", b" y"):
        states = [body for body in sent if body.endswith(key)]
        if states and sender.lost == 0:
            assert states[-1] in got
    assert sender.waiting_bytes <= limit


@pytest.mark.parametrize("count", [10_000])
def test_a_long_queue_is_not_slow(count: int) -> None:
    channel = Channel(LARGE)
    for _ in range(count):
        channel.send(b"")
    assert len(channel.hand_out()) == count
    for seq in range(1, count + 1):
        channel.acknowledged(seq)
    assert not channel.has_waiting


def test_what_is_sent_again_on_a_new_connection_is_not_confirmed_by_its_welcome() -> None:
    channel = Channel(LARGE)
    for body in (b"1", b"2", b"3"):
        channel.send(body)
    channel.acknowledged(2)
    channel.rewind()
    assert (channel.newest, channel.confirmed) == (3, 2)
    channel.acknowledged(1)  # late
    channel.acknowledged(9)  # of messages that it cannot have had
    assert channel.confirmed == 2
    channel.acknowledged(3)
    assert channel.confirmed == channel.newest
