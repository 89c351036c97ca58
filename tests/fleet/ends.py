"""A hub and links in one loop of the test's: real sockets, real CURVE, no thread but ZeroMQ's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import zmq

from guardrun.supervisor.fleet.transport import hub as hub_module
from guardrun.supervisor.fleet.transport import link as link_module
from guardrun.supervisor.fleet.transport.curve import KeyPair, make_key_pair
from guardrun.supervisor.fleet.transport.hub import Hub, HubSettings
from guardrun.supervisor.fleet.transport.link import Head, Link
from guardrun.supervisor.wire.listening_addresses import Listen

T = TypeVar("T")


class Bench:
    """Both ends. What `read` returned is collected: `seen` of the hub, `got[link]` of each link."""

    def __init__(self) -> None:
        self.server = make_key_pair()
        self.client = make_key_pair()
        self.hubs: list[Hub] = []
        self.links: list[Link] = []
        self.seen: list[tuple[str, hub_module.What]] = []
        self.got: dict[Link, list[link_module.What]] = {}
        self.poller = zmq.Poller()
        self.began_s = time.monotonic()
        self.is_acknowledging = True

    def now(self) -> float:
        """The run's seconds: this host's, from an origin of their own."""
        return time.monotonic() - self.began_s + 1000.0

    @property
    def hub(self) -> Hub:
        return self.hubs[-1]

    def open_hub(self, port: int = 0, **settings: Any) -> Hub:
        settings.setdefault("listen", Listen(addresses=["127.0.0.1"]))
        hub = Hub(self.now, self.server, [self.client.public], port, HubSettings(**settings))
        hub.register(self.poller)
        self.hubs.append(hub)
        return hub

    def close_hub(self) -> None:
        """As if it had been killed: nothing that was read last is acknowledged."""
        for socket, _ in list(self.poller.sockets):
            if socket.context is self.hub._context:
                self.poller.unregister(socket)
        self.hubs.pop().close()

    def open_link(self, node: str, keys: KeyPair | None = None, port: int = 0, server: str = "", **more: Any) -> Link:
        head = Head(["127.0.0.1"], port or self.hub.port, server or self.server.public)
        link = Link(head, keys or self.client, node, **more)
        link.register(self.poller)
        self.links.append(link)
        self.got[link] = []
        return link

    def close_link(self, link: Link) -> None:
        self.links.remove(link)
        link.close()

    def turn(self, wait_s: float = 0.02) -> None:
        """One turn of everybody's loop."""
        ready = dict(self.poller.poll(round(wait_s * 1000)))
        for hub in self.hubs:
            self.seen += hub.read(ready)
            if self.is_acknowledging:
                hub.acknowledge()
        for link in self.links:
            self.got[link] += link.read(ready)

    def until(self, read: Callable[[], T], timeout_s: float = 60.0) -> T:
        """Turn until `read` says something true."""
        deadline_s = time.monotonic() + timeout_s
        while not (answer := read()):
            assert time.monotonic() < deadline_s, f"after {timeout_s} s: seen {self.seen[-5:]}, got {self.got}"
            self.turn()
        return answer

    def turns(self, seconds: float) -> None:
        """Turn for so long, to see that nothing happens."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.turn()

    def joined(self, *nodes: str) -> None:
        """Turn until these are in, at both ends."""
        self.until(lambda: set(nodes) <= set(self.hub.nodes) and all(link.is_joined for link in self.links))

    def bodies(self, node: str) -> list[bytes]:
        return [what.body for name, what in self.seen if name == node and isinstance(what, hub_module.Body)]

    def orders(self, link: Link) -> list[bytes]:
        return [what.body for what in self.got[link] if isinstance(what, link_module.Body)]

    def close(self) -> None:
        for link in self.links:
            link.close(linger_s=0)
        for hub in self.hubs:
            hub.close()


@contextmanager
def opened() -> Iterator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        bench.close()


def kinds(happened: Sequence[tuple[str, object]]) -> list[tuple[str, str]]:
    """(node, type) of what a hub returned."""
    return [(node, type(what).__name__) for node, what in happened]
