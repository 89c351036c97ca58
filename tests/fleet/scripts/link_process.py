"""A deputy: FOLDER HOST NODE EVERY_S. Sends 0, 1, 2, … until its standard input ends, and then what is left.

Writes a line for whatever happens, CLOCK_MONOTONIC first, and when a lease ends; at the end how many it has sent.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import zmq

from guardrun.supervisor.fleet.protocol.lease import boot_s
from guardrun.supervisor.fleet.transport.link import Body, Head, Link
from tests.fleet.scripts.hub_process import Door, tell


def main() -> None:
    folder, host, node, every_s = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    door = msgspec.json.decode((folder / "door.json").read_bytes(), type=Door)
    link = Link(Head([host], door.port, door.server.public), door.client, node)
    poller = zmq.Poller()
    link.register(poller)
    poller.register(0, zmq.POLLIN)
    count, next_s, is_ending, was_held = 0, time.monotonic(), False, False
    while not is_ending or link.has_waiting:
        ready = dict(poller.poll(10))
        for what in link.read(ready):
            tell(type(what).__name__, what.body.decode() if isinstance(what, Body) else "")
        if link.lease.is_held(boot_s()) is not was_held:
            was_held = not was_held
            over_s = link.lease.contact_s + link.lease.term_s - boot_s() + time.monotonic()
            tell("lease", "held" if was_held else "over", f"{over_s:.4f}")
        if not is_ending and time.monotonic() >= next_s:
            link.send(b"%d" % count)
            count += 1
            next_s += every_s
        if 0 in ready:
            is_ending = True
            poller.unregister(0)
    error_s = abs(link.offset.offset_s)  # the hub's clock is this one
    tell("sent", count, "offset", f"{error_s:.6f}", "error", f"{link.offset.error_s(time.monotonic()):.6f}")
    link.close()


if __name__ == "__main__":
    main()
