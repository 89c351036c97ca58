"""Connections that have not joined are thinned out, the commonest address first, and nothing else is touched."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from guardrun.supervisor.fleet.transport.peers import (
    ENOUGH_DESCRIPTORS,
    ConnectionLimiter,
    raise_descriptor_limit,
)


class Door:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = int(self._listener.getsockname()[1])

    def enter(self, address: str) -> tuple[socket.socket, socket.socket]:
        """(our end, theirs) of a connection from this address."""
        theirs = socket.create_connection(("127.0.0.1", self.port), source_address=(address, 0))
        ours, _ = self._listener.accept()
        theirs.setblocking(False)
        return self._stack.enter_context(ours), self._stack.enter_context(theirs)


@pytest.fixture
def door() -> Iterator[Door]:
    with ExitStack() as stack:
        yield Door(stack)


def is_shut(theirs: socket.socket) -> bool:
    try:
        return not theirs.recv(1)
    except BlockingIOError:
        return False


def test_the_commonest_address_goes_first_and_its_oldest(door: Door) -> None:
    crowd = ConnectionLimiter(10)
    ends = [door.enter("127.0.0.1") for _ in range(2)] + [door.enter("127.0.0.2") for _ in range(8)]
    for ours, _ in ends:
        crowd.came(ours.fileno())
    crowd.thin_out(door.port)
    assert not any(is_shut(theirs) for _, theirs in ends), "so many may be there"
    ends.append(door.enter("127.0.0.2"))
    crowd.came(ends[-1][0].fileno())
    crowd.thin_out(door.port)
    assert [is_shut(theirs) for _, theirs in ends] == [False] * 2 + [True] * 6 + [False] * 3
    assert (len(crowd), crowd.sent_away) == (5, 6)


def test_with_one_from_each_address_the_oldest_go(door: Door) -> None:
    crowd = ConnectionLimiter(4)
    ends = [door.enter(f"127.0.0.{number}") for number in range(1, 6)]
    for ours, _ in ends:
        crowd.came(ours.fileno())
    crowd.thin_out(door.port)
    assert sum(is_shut(theirs) for _, theirs in ends) == 3


def test_who_has_joined_and_what_is_no_connection_of_ours_is_left_alone(door: Door) -> None:
    crowd = ConnectionLimiter(1)
    joined, stranger = door.enter("127.0.0.1"), door.enter("127.0.0.1")
    for ours, _ in (joined, stranger):
        crowd.came(ours.fileno())
    crowd.went(joined[0].fileno())
    file = os.open("/dev/null", os.O_RDONLY)
    left, right = socket.socketpair()
    for fd in (file, left.fileno(), 999_999):  # used again for something else, or for nothing
        crowd.came(fd)
    try:
        crowd.thin_out(door.port)
        assert (is_shut(joined[1]), is_shut(stranger[1])) == (False, True)
        left.send(b"x")
        assert right.recv(1) == b"x"
        assert len(crowd) == 0
    finally:
        os.close(file)
        left.close()
        right.close()


def test_descriptors_are_raised_to_what_may_be_had() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        got = raise_descriptor_limit()
        assert got == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], ENOUGH_DESCRIPTORS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
