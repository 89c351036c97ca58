"""Bytes that processes move over TCP, which /proc/PID/io leaves out: sock_diag(7) over netlink.

One dump of all TCP sockets of our network namespace answers for all ranks; /proc/PID/fd says whose socket is whose.
Constants and layouts: linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h, and struct tcp_info of linux/tcp.h, in
which tcpi_bytes_acked (sent, and acknowledged) and tcpi_bytes_received have stood at 120 and 128 since Linux 4.1.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable

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


def parse_diag(data: bytes) -> tuple[dict[int, int], bool]:
    """Parse one datagram of a dump: ({inode: bytes sent and received}, is_last). Raises OSError on an error reply."""
    counts: dict[int, int] = {}
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            break
        if kind == _NLMSG_DONE:
            return counts, True
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise OSError(-code, os.strerror(-code))
        message = data[at + _HEADER.size : at + length]
        if kind == _SOCK_DIAG_BY_FAMILY and len(message) >= _MESSAGE_BYTES:
            (inode,) = _INODE.unpack_from(message, _INODE_AT)
            moved = _parse_tcp_info(message)
            if inode and moved >= 0:
                counts[inode] = moved
        at += (length + 3) & ~3
    return counts, False


def _parse_tcp_info(message: bytes) -> int:
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            acked, received = _COUNTERS.unpack_from(message, at + _ATTRIBUTE.size + _COUNTERS_AT)
            return int(acked) + int(received)
        at += (length + 3) & ~3
    return -1


def read_tcp_bytes() -> dict[int, int] | None:
    """Bytes moved so far per socket inode, all TCP sockets of our network namespace; None where we may not ask."""
    counts: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(_TIMEOUT_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
                length = _HEADER.size + len(request)
                header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, family, 0)
                netlink.sendto(header + request, (0, 0))
                for _ in range(_MOST_REPLIES):
                    found, is_last = parse_diag(netlink.recv(1 << 16))
                    counts.update(found)
                    if is_last:
                        break
    except OSError:
        return None
    return counts


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
