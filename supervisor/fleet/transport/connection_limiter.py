"""Connections that have not joined: so many and no more, so that strangers cannot take all descriptors.

ZeroMQ accepts whoever comes, and has no way to send one away; to close the port would end every connection. So the
descriptor itself is shut, which ZeroMQ takes for the peer's end. Who is sent away comes from the address that most
come from: the nodes of a job have one connection each, and are back within two seconds where it met one of them.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import defaultdict

ENOUGH_DESCRIPTORS = 32_768
"""A job of MAX_NODES, and room for its crowd."""


def raise_descriptor_limit() -> int:
    """Take as many descriptors as this process may have, up to ENOUGH_DESCRIPTORS; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class ConnectionLimiter:
    """The descriptors of those that have not joined, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fds: dict[int, None] = {}
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._fds)

    def came(self, fd: int) -> None:
        """A connection was accepted; a descriptor that is used again counts as the newest."""
        self._fds.pop(fd, None)
        self._fds[fd] = None

    def went(self, fd: int) -> None:
        """It has joined, or is gone."""
        self._fds.pop(fd, None)

    def thin_out(self, port: int) -> None:
        """Where there are too many, send half of them away: of the commonest address first, the oldest of it first.

        port: ours; a descriptor that is no connection to it is used for something else by now, and left alone.
        """
        if len(self._fds) <= self._limit:
            return
        by_address: dict[str, list[int]] = defaultdict(list)
        for fd in self._fds:
            by_address[_peer_of(fd, port)].append(fd)
        for fd in by_address.pop("", []):
            del self._fds[fd]
        while by_address and len(self._fds) > self._limit // 2:
            commonest = max(by_address, key=lambda address: len(by_address[address]))
            fds = by_address[commonest]
            # Down to the next in number, but at least one: not a pass through all for each that goes.
            others = max((len(other) for address, other in by_address.items() if address != commonest), default=0)
            count = min(max(1, len(fds) - others), len(self._fds) - self._limit // 2)
            for fd in fds[:count]:
                _shut(fd)
                del self._fds[fd]
                self.sent_away += 1
            del fds[:count]
            if not fds:
                del by_address[commonest]


def _peer_of(fd: int, port: int) -> str:
    """The address at the other end; empty where this is no connection to our port."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                return ""
            return str(connection.getpeername()[0])
    except OSError:
        return ""


def _shut(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone already
