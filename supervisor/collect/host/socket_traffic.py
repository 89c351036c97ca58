"""Bytes that processes move over TCP, which /proc/PID/io leaves out: sock_diag(7) over netlink.

One dump of all TCP sockets of our network namespace answers for all ranks; /proc/PID/fd says whose socket is whose.
Constants and layouts: linux/sock_diag.h, linux/inet_diag.h, linux/unix_diag.h, linux/netlink.h, and struct tcp_info of
linux/tcp.h, in which tcpi_bytes_acked (sent, and acknowledged) and tcpi_bytes_received have stood at 120 and 128 since
Linux 4.1.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Iterable

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_TIMEOUT_S = 1.0
_MOST_REPLIES = 4096
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")

_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_REQUEST = struct.Struct("=BBBBI48x")  # inet_diag_req_v2, any socket
_INODE = struct.Struct("=I")  # idiag_inode
_INODE_AT = 68
_MESSAGE_BYTES = 72  # inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")  # rtattr
_COUNTERS = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_COUNTERS_AT = 120

_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_UNIX_REQUEST = struct.Struct("=BBxxIII8x")  # unix_diag_req
_UNIX_MESSAGE_BYTES, _UNIX_INODE_AT = 16, 4  # unix_diag_msg


def parse_diag(data: bytes) -> tuple[dict[int, int], bool]:
    """Parse one datagram of a dump: ({inode: bytes sent and received}, is_last). Raises OSError on an error reply."""
    counts: dict[int, int] = {}
    messages, is_last = _messages(data, _MESSAGE_BYTES)
    for message in messages:
        (inode,) = _INODE.unpack_from(message, _INODE_AT)
        info = _attribute(message, _MESSAGE_BYTES, _INET_DIAG_INFO)
        if inode and len(info) >= _COUNTERS_AT + _COUNTERS.size:
            counts[inode] = sum(_COUNTERS.unpack_from(info, _COUNTERS_AT))
    return counts, is_last


def parse_unix_diag(data: bytes) -> tuple[dict[int, int], bool]:
    """The same of a dump of local sockets: ({inode: its peer's}, is_last)."""
    peers: dict[int, int] = {}
    messages, is_last = _messages(data, _UNIX_MESSAGE_BYTES)
    for message in messages:
        (inode,) = _INODE.unpack_from(message, _UNIX_INODE_AT)
        peer = _attribute(message, _UNIX_MESSAGE_BYTES, _UNIX_DIAG_PEER)
        if inode and len(peer) >= _INODE.size:
            (peers[inode],) = _INODE.unpack_from(peer)
    return peers, is_last


def _messages(data: bytes, least: int) -> tuple[list[bytes], bool]:
    """Of one datagram: the messages of at least so many bytes, and whether no more follow. Raises OSError."""
    messages: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            break
        if kind == _NLMSG_DONE:
            return messages, True
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise OSError(-code, os.strerror(-code))
        message = data[at + _HEADER.size : at + length]
        if kind == _SOCK_DIAG_BY_FAMILY and len(message) >= least:
            messages.append(message)
        at += (length + 3) & ~3
    return messages, False


def _attribute(message: bytes, at: int, wanted: int) -> bytes:
    """The payload of an attribute, which begin at `at`; empty where there is none."""
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return message[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return b""


def read_tcp_bytes() -> dict[int, int] | None:
    """Bytes moved so far per socket inode, all TCP sockets of our network namespace; None where we may not ask."""
    requests = [
        _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
        for family in (socket.AF_INET, socket.AF_INET6)
    ]
    return _dump(requests, parse_diag)


def read_unix_peers() -> dict[int, int]:
    """Inode → inode of the socket at its other end, of all local sockets of our network namespace; empty: not told."""
    return _dump([_UNIX_REQUEST.pack(socket.AF_UNIX, 0, _ALL_STATES, 0, _UDIAG_SHOW_PEER)], parse_unix_diag) or {}


def _dump(requests: Iterable[bytes], parse: Callable[[bytes], tuple[dict[int, int], bool]]) -> dict[int, int] | None:
    """What a dump for each request says, put together; None where we may not ask."""
    told: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(_TIMEOUT_S)
            for number, request in enumerate(requests, 1):
                length = _HEADER.size + len(request)
                header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, number, 0)
                netlink.sendto(header + request, (0, 0))
                for _ in range(_MOST_REPLIES):
                    found, is_last = parse(netlink.recv(1 << 16))
                    told.update(found)
                    if is_last:
                        break
    except OSError:
        return None
    return told


def read_socket_inodes(pid: int) -> set[int] | None:
    """Inodes of the sockets a process holds open; None where it is gone or forbids the look."""
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for name in names:
        try:
            match = _SOCKET_LINK.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if match:
            inodes.add(int(match[1]))
    return inodes


def socket_bytes(pids: Iterable[int], counts: dict[int, int] | None) -> int:
    """Bytes moved over the TCP sockets that these processes hold, each socket once; -1 where that can't be known.

    Falls when a socket is closed: compare for a difference, not for growth.
    """
    if counts is None:
        return -1
    held = [inodes for pid in pids if (inodes := read_socket_inodes(pid)) is not None]
    if not held:
        return -1
    return sum(counts.get(inode, 0) for inode in set().union(*held))
