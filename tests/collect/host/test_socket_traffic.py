from __future__ import annotations

import os
import socket
import struct

import pytest

from guardrun.supervisor.collect.host.socket_traffic import (
    parse_diag,
    read_socket_inodes,
    read_tcp_bytes,
    socket_bytes,
)
from tests.collect.conftest import StartScript
from tests.support.waiting import wait_until

TALK = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
peer.sendall(b'x' * 1000)
print('ready', flush=True)
peer.recv(10)
peer.sendall(b'x' * 70000)
time.sleep(60)
"""


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_bytes_over_loopback_are_counted_per_process(
    family: socket.AddressFamily, address: str, start_script: StartScript
) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"no {address} here")
        server.listen()
        script = start_script(TALK, address, str(server.getsockname()[1]), ends_asleep=False)
        peer, _ = server.accept()
        with peer:
            received = len(peer.recv(1000, socket.MSG_WAITALL))
            # The kernel counts the connection's first byte (SYN) as acknowledged, too.
            wait_until(lambda: 1000 <= socket_bytes([script.pid], read_tcp_bytes()) <= 1002, 5, "the first bytes")
            peer.sendall(b"go")
            received += len(peer.recv(70000, socket.MSG_WAITALL))
            assert received == 71000
            wait_until(lambda: 71002 <= socket_bytes([script.pid], read_tcp_bytes()) <= 71004, 5, "all bytes")
            counts = read_tcp_bytes()
            assert socket_bytes([script.pid, script.pid], counts) == socket_bytes([script.pid], counts)
            assert socket_bytes([script.pid, os.getpid()], counts) >= 2 * 71000


def test_what_cannot_be_known_is_minus_one() -> None:
    assert socket_bytes([os.getpid()], None) == -1
    assert socket_bytes([1 << 22], {}) == -1
    assert read_socket_inodes(1 << 22) is None


def test_an_unexpected_reply_is_no_crash() -> None:
    assert parse_diag(b"") == ({}, False)
    assert parse_diag(b"\1" * 7) == ({}, False)
    assert parse_diag(struct.pack("=IHHII", 3, 20, 0, 0, 0)) == ({}, False)
    assert parse_diag(struct.pack("=IHHII", 16, 20, 0, 0, 0) * 3) == ({}, False)
    assert parse_diag(struct.pack("=IHHII", 16, 3, 0, 0, 0)) == ({}, True)
    with pytest.raises(PermissionError):
        parse_diag(struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -1))
