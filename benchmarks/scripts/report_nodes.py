"""Many deputies in one process: FIRST COUNT RANKS SECONDS CORE. Reads a Door, and later a line, on standard input.

Each node is a connection with CURVE and a Join of its own, and speaks the envelopes of a deputy's link: one report a
second, spread over the second. What comes back is read by ZeroMQ, and left in its queue.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import zmq

from benchmarks.fleet import Door, Sent, report
from guardrun.supervisor.fleet.transport.envelopes import PROTOCOL, Join, Report, Welcome

CONNECTS_AT_ONCE = 200
JOIN_TIMEOUT_MS = 60_000


def connect(context: zmq.Context[zmq.Socket[bytes]], door: Door, node: int) -> zmq.Socket[bytes]:
    """A node that has sent its Join."""
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RECONNECT_IVL, -1)
    socket.curve_serverkey = door.server_key.encode()
    socket.curve_publickey = door.public.encode()
    socket.curve_secretkey = door.secret.encode()
    socket.connect(f"tcp://127.0.0.1:{door.port}")
    join = Join(PROTOCOL, f"node-{node}", node, node + 1, 1, 0, 0, time.monotonic_ns())
    socket.send(msgspec.msgpack.encode(join))
    return socket


def main() -> None:
    first, count, ranks, seconds, core = map(int, sys.argv[1:6])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    door = msgspec.json.decode(sys.stdin.readline(), type=Door)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 10)
    sockets: list[zmq.Socket[bytes]] = []
    while len(sockets) < count:
        more = range(first + len(sockets), first + min(count, len(sockets) + CONNECTS_AT_ONCE))
        new = [connect(context, door, node) for node in more]
        for socket in new:
            if not socket.poll(JOIN_TIMEOUT_MS):
                sys.exit("a node was not welcomed")
            msgspec.msgpack.decode(socket.recv(), type=Welcome)
        sockets += new
    print("joined", flush=True)
    sys.stdin.readline()
    encode = msgspec.msgpack.Encoder().encode
    began_s = time.monotonic()
    behind_s = 0.0
    for turn in range(seconds):
        for number, socket in enumerate(sockets):
            due_s = began_s + turn + number / count
            late_s = time.monotonic() - due_s
            if late_s < 0:
                time.sleep(-late_s)
            behind_s = max(behind_s, late_s)
            sent_ns = time.monotonic_ns()
            body = encode(report(first + number, ranks, sent_ns / 1e9))
            socket.send(encode(Report(turn + 1, body, sent_ns, 0)), zmq.NOBLOCK)
    sent = Sent(count * seconds, time.monotonic() - began_s, behind_s)
    print(msgspec.json.encode(sent).decode(), flush=True)
    sys.stdin.readline()
    for socket in sockets:
        socket.close(linger=0)
    context.term()


main()
