"""Where a listener for other nodes listens: at the addresses by which they come, not at all that this machine has.

To listen at one too many is a door more for strangers; at one too few, and a job does not form that did before. So
what is not known for sure is listened for everywhere, or, where a name says enough to begin with, at first there, and
everywhere once somebody has been missing for a while (`Missed`): a name may stand for another of this machine's
addresses on another node (/etc/hosts here, DNS there).

Loopback is always among them: who is on this machine comes by any of its addresses anyway.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from guardrun.supervisor.engine.model.events import FleetPlan, Settings

LOOPBACK = ("127.0.0.1", "::1")
MISSED_S = 30.0
"""Nodes that are started together are there sooner: a scheduler's within seconds, a person's within this, mostly."""
AGAIN_S = 5.0
"""How often addresses that this machine has got meanwhile are looked for, as long as somebody is missing."""
TRIES = 10
"""For a port that is free at several addresses."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen."""

    addresses: list[str] = []
    """Numeric, of this machine; empty: all, also those that it does not have yet."""
    is_certain: bool = True
    """Nobody comes by another. Else: nobody that is known of."""

    @property
    def is_here_alone(self) -> bool:
        """Whether only what runs on this machine gets through."""
        return bool(self.addresses) and all(map(is_loopback, self.addresses))


EVERYWHERE = Listen()


def where_to_listen(host: str, resolved: Iterable[str], own: Collection[str]) -> Listen:
    """Where those arrive who reach this machine as `host`.

    host: a name or address. resolved: the addresses behind it, as this machine knows them. own: this machine's.

    - 127.0.0.1, ::1: loopback alone.
    - An address of this machine's: that one.
    - A name of such addresses alone: those, to begin with.
    - A name that means loopback here (localhost; Debian gives a host's own name 127.0.1.1): means another address
      elsewhere, and it is not known which. Everywhere.
    - What is not this machine's, though it leads here (address translation, a floating address, a container's mapped
      port): arrives at whichever. Everywhere. So does what has no address at all, 0.0.0.0, and an IPv6 address that
      holds for one link.
    """
    found, known = [_parse(one) for one in resolved], {_parse(one) for one in own}
    outside = [one for one in found if one is not None and not one.is_loopback]
    is_address = _parse(host) is not None
    if not found or None in found or not (outside or is_address) or not known.issuperset(outside):
        return EVERYWHERE
    if any(one.is_unspecified or one.is_multicast or (one.version == 6 and one.is_link_local) for one in outside):
        return EVERYWHERE
    loopback = [str(one) for one in found if one is not None and one.is_loopback]
    usual = [one for one in LOOPBACK if _parse(one) in known]
    return Listen(addresses=list(dict.fromkeys([*map(str, outside), *loopback, *usual])), is_certain=is_address)


def join_both(one: Listen, other: Listen) -> Listen:
    """Where those arrive that come by either."""
    if not one.addresses or not other.addresses:
        return EVERYWHERE
    addresses = list(dict.fromkeys([*one.addresses, *other.addresses]))
    return Listen(addresses=addresses, is_certain=one.is_certain and other.is_certain)


def own_addresses() -> list[str]:
    """All of this machine's, those of one link with its name (fe80::1%eth0); none where that may not be asked."""
    import psutil  # for jobs of several nodes alone

    families = (socket.AF_INET, socket.AF_INET6)
    try:
        return [one.address for found in psutil.net_if_addrs().values() for one in found if one.family in families]
    except OSError:
        return []


def peer_addresses(most: int = 64) -> list[str]:
    """Those of this machine by which others may know it: none of its loopback, nor of one link alone."""
    return [one for one in own_addresses() if "%" not in one and not is_loopback(one)][:most]


class Missed:
    """When nodes have been missing for so long that they may be coming by another address."""

    def __init__(self, plan: FleetPlan, settings: Settings, now_s: float) -> None:
        self._count = plan.most + plan.spares
        self._wait_s = min(MISSED_S, settings.join_timeout_s / 4)
        if plan.least < self._count:
            self._wait_s = min(self._wait_s, settings.last_call_s / 2)  # then the job begins without them
        self._due_s = now_s + self._wait_s

    def is_due(self, present: int, now_s: float) -> bool:
        """Whether to listen everywhere now. present: nodes that are connected, this one among them."""
        if present >= self._count:
            self._due_s = now_s + self._wait_s
        if now_s < self._due_s:
            return False
        self._due_s = now_s + AGAIN_S
        return True


# Sockets -----------------------------------------------------------------------------------------------------------


def bind_to(listen: Listen, port: int, bind: Callable[[str, int], int], undo: Callable[[], None]) -> int:
    """Bind the same port at each address; returns it. port 0: any that is free at all of them.

    bind: one address (empty: all) and port, returns the port. undo: lets go of what was bound.
    An address that this machine has not got any more leads everywhere: those who come have another by now.
    Raises OSError, as where the port is taken.
    """
    listen = _present(listen)
    if not listen.addresses:
        return bind("", port)
    for tried in range(TRIES):
        try:
            found = bind(listen.addresses[0], port)
            for address in listen.addresses[1:]:
                bind(address, found)
            return found
        except OSError as error:
            undo()
            if error.errno != errno.EADDRINUSE or port or tried == TRIES - 1:
                raise
    raise AssertionError("tried at least once")


def open_listeners(listen: Listen, port: int, backlog: int) -> list[socket.socket]:
    """Non-blocking ones, of one port. Raises OSError."""
    opened: list[socket.socket] = []

    def bind(address: str, wanted: int) -> int:
        opened.append(open_listener(address, wanted, backlog))
        return int(opened[-1].getsockname()[1])

    def undo() -> None:
        while opened:
            opened.pop().close()

    bind_to(listen, port, bind, undo)
    return opened


def open_listener(address: str, port: int, backlog: int) -> socket.socket:
    """address: numeric; empty: all, of IPv6 and IPv4 where the host has both. Raises OSError."""
    if address:
        family, place = _place_of(address, port)
        listener = socket.create_server(place, family=family, backlog=backlog)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    else:
        listener = socket.create_server(("", port), backlog=backlog)
    listener.setblocking(False)
    return listener


def _present(listen: Listen) -> Listen:
    """Of the addresses those that can be bound; all where one is gone by which others come."""
    there = [address for address in listen.addresses if _is_there(address)]
    if not there or any(not is_loopback(address) for address in set(listen.addresses).difference(there)):
        return listen if listen.is_here_alone else EVERYWHERE
    return msgspec.structs.replace(listen, addresses=there)


def _is_there(address: str) -> bool:
    with suppress(OSError):
        family, place = _place_of(address, 0)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(place)
            return True
    return False


def _place_of(address: str, port: int) -> tuple[int, tuple[str, int]]:
    """Family, and what bind takes: that of one link needs its number besides."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, _, _, _, place = found[0]
    return family, place  # type: ignore[return-value]  # four parts for IPv6, which create_server takes, too


def numeric_only(addresses: Sequence[str]) -> list[str]:
    """Without loopback: what other nodes may be given."""
    return [address for address in addresses if not is_loopback(address)]


def is_loopback(address: str) -> bool:
    """Whether it is an address of this machine to itself, IPv4's within IPv6 too; False for a name."""
    found = _parse(address)
    return found is not None and found.is_loopback


def _parse(text: str) -> _Address | None:
    """None where it is no address. One of IPv4 within IPv6 is that of IPv4."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
