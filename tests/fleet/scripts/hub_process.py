"""A coordinator: FOLDER BIND TERM_S. Keys and port are in FOLDER/door.json, what it has dealt with in FOLDER/journal.

Writes a line for whatever happens, CLOCK_MONOTONIC first; sends `NODE TEXT` of each line that it reads.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import msgspec
import zmq

from guardrun.supervisor.fleet.protocol.lease import ranks_gone_s
from guardrun.supervisor.fleet.transport.curve import KeyPair, make_key_pair
from guardrun.supervisor.fleet.transport.hub import Body, Dropped, Hub, HubSettings, Known
from guardrun.supervisor.wire.listening_addresses import Listen


class Door(msgspec.Struct):
    server: KeyPair
    client: KeyPair
    port: int


def tell(*words: object) -> None:
    print(f"{time.monotonic():.4f}", *words, flush=True)


def open_hub(folder: Path, bind: str, term_s: float) -> Hub:
    """On the port and with the keys of the one before, where there was one."""
    path, journal = folder / "door.json", folder / "journal"
    known: dict[str, Known] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        node, incarnation, seq, _ = line.split(" ", 3)
        known[node] = Known(int(incarnation), int(seq))
    is_first = not path.exists()
    door = Door(make_key_pair(), make_key_pair(), 0) if is_first else msgspec.json.decode(path.read_bytes(), type=Door)
    settings = HubSettings(listen=Listen(addresses=[] if bind == "*" else [bind]), term_s=term_s, known=known)
    hub = Hub(time.monotonic, door.server, [door.client.public], door.port, settings)
    if is_first:
        door.port = hub.port
        path.with_suffix(".new").write_bytes(msgspec.json.encode(door))
        path.with_suffix(".new").rename(path)
    return hub


def main() -> None:
    folder, bind, term_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    hub = open_hub(folder, bind, term_s)
    journal = (folder / "journal").open("a")
    joined: set[str] = set()
    gone: set[str] = set()
    poller = zmq.Poller()
    hub.register(poller)
    os.set_blocking(0, False)
    poller.register(0, zmq.POLLIN)
    tell("listening", hub.port)
    while True:
        ready = dict(poller.poll(20))
        for node, what in hub.read(ready):
            if isinstance(what, Body):
                journal.write(f"{node} {what.incarnation} {what.seq} {what.body.decode()}\n")
            else:
                tell(type(what).__name__, node)
            if not isinstance(what, Dropped):
                joined.add(node)
        journal.flush()
        hub.acknowledge()
        for node in joined:
            gone_s = ranks_gone_s(hub.heard_s(node), -math.inf, term_s=term_s, still_s=0.0)
            is_gone = time.monotonic() >= gone_s
            if is_gone is not (node in gone):
                (gone.add if is_gone else gone.discard)(node)
                tell("gone" if is_gone else "there", node)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                hub.close()
                return
            for line in data.decode().splitlines():
                node, text = line.split(" ", 1)
                hub.send(node, text.encode())


if __name__ == "__main__":
    main()
