"""Network links as the kernel tells them over rtnetlink: asked for all, or waited on (rtnetlink(7), netlink(7)).

Of this process's network namespace, unlike /sys, which shows that of whoever mounted it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

RTMGRP_LINK = 1  # linux: include/uapi/linux/rtnetlink.h
_NLMSG_ERROR, _NLMSG_DONE = 2, 3  # linux: include/uapi/linux/netlink.h
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_IFLA_IFNAME, _IFLA_STATS64, _IFLA_CARRIER_CHANGES = 3, 23, 35  # linux: include/uapi/linux/if_link.h
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING, _IFF_LOWER_UP = 0x1, 0x8, 0x40, 0x10000  # linux: include/uapi/linux/if.h
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_STATS = struct.Struct("=8Q")
"""struct rtnl_link_stats64 begins: packets, bytes, errors, dropped, each received then sent."""
_RECEIVE_BYTES = 1 << 17
_BUFFER_BYTES = 1 << 20
_TIMEOUT_S = 3.0


class Link(NamedTuple):
    """One network interface at one moment."""

    number: int
    name: str
    flags: int
    carrier_changes: int = -1
    """-1: not told."""
    stats: tuple[int, ...] = ()
    """rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped; empty: not told."""
    is_gone: bool = False

    @property
    def is_enabled(self) -> bool:
        """Whether somebody wants it up."""
        return bool(self.flags & _IFF_UP)

    @property
    def is_up(self) -> bool:
        """Whether it is, its cable and its other end included."""
        wanted = _IFF_UP | _IFF_RUNNING | _IFF_LOWER_UP
        return self.flags & wanted == wanted

    @property
    def is_loopback(self) -> bool:
        """Whether it is the interface to this machine itself (IFF_LOOPBACK)."""
        return bool(self.flags & _IFF_LOOPBACK)


class Message(NamedTuple):
    """One netlink message."""

    kind: int
    body: bytes


def parse_messages(data: bytes) -> Iterator[Message]:
    """The messages in what one receive answered; one that is cut short ends them."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield Message(kind, data[at + _HEADER.size : at + length])
        at += _aligned(length)


def parse_link(message: Message) -> Link | None:
    """An RTM_NEWLINK or RTM_DELLINK message; None for any other, and for one that is cut short."""
    if message.kind not in (_RTM_NEWLINK, _RTM_DELLINK) or len(message.body) < _IFINFO.size:
        return None
    _, _, index, flags, _ = _IFINFO.unpack_from(message.body)
    attributes = dict(_attributes(message.body[_IFINFO.size :]))
    name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
    changes = attributes.get(_IFLA_CARRIER_CHANGES, b"")
    stats = attributes.get(_IFLA_STATS64, b"")
    return Link(
        number=index,
        name=name or f"#{index}",
        flags=flags,
        carrier_changes=struct.unpack("=I", changes)[0] if len(changes) == 4 else -1,
        stats=_STATS.unpack_from(stats) if len(stats) >= _STATS.size else (),
        is_gone=message.kind == _RTM_DELLINK,
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _open(groups: int) -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.bind((0, groups))
    except OSError:
        sock.close()
        raise
    return sock


def read_links() -> list[Link]:
    """All links now. Raises OSError, TimeoutError among them."""
    with _open(0) as sock:
        sock.settimeout(_TIMEOUT_S)
        body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        sock.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETLINK, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + body)
        links: list[Link] = []
        while True:
            for message in parse_messages(sock.recv(_RECEIVE_BYTES)):
                if message.kind == _NLMSG_DONE:
                    return links
                if message.kind == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", message.body)[0]
                    raise OSError(number, os.strerror(number))
                link = parse_link(message)
                if link is not None:
                    links.append(link)


class LinkEvents:
    """Changes of links from now on."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._socket = _open(RTMGRP_LINK)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)

    def fileno(self) -> int:
        """Readable when a link has changed."""
        return self._socket.fileno()

    def read_changes(self, limit: int) -> tuple[list[Link], bool]:
        """Changes since the last call, in their order, and whether some were lost (more than the buffer holds)."""
        links: list[Link] = []
        were_lost = False
        while len(links) < limit:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                if were_lost:
                    break
                were_lost = True  # ENOBUFS: told once, then come those that are there.
                continue
            links += [link for message in parse_messages(data) if (link := parse_link(message)) is not None]
        return links, were_lost

    def close(self) -> None:
        """Close the socket; no more changes are seen."""
        self._socket.close()
