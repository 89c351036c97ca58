"""The address at which other nodes reach this one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from guardrun.supervisor.wire.listening_addresses import Listen, own_addresses, where_to_listen

NOWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Of networks that do not exist (RFC 5737, RFC 3849): asking for the way there sends nothing."""
LOOPBACK_S = 5.0
"""For finding out that it does not answer: it answers at once, or refuses."""


def find_address(local_addr: str | None = None) -> str:
    """What torchrun would name this host (--local-addr, else its full name), where other hosts could use that.

    A name that stands for this host alone, as Debian's 127.0.1.1 does, is replaced by the address on the way out.
    """
    name = local_addr or socket.getfqdn()
    if _is_reachable(name):
        return name
    for family, nowhere in NOWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((nowhere, 9))
            return str(probe.getsockname()[0])
    return name if local_addr else "localhost"


def is_own(host: str) -> bool:
    """Whether a host's name or address is this host's: something can be bound there."""
    return any(_can_bind(family, address) for family, address in _look_up(host))


@cache
def _look_up(host: str) -> list[tuple[int, tuple[object, ...]]]:
    """(family, address) of each; empty where the name is not known. Asked once: a name service that is down is slow."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]


def does_resolve(host: str) -> bool:
    """Whether anything is known here of a host's name."""
    return bool(_look_up(host))


def loopback_trouble(limit_s: float = LOOPBACK_S) -> str:
    """Why nothing on this host can be reached at `localhost`, as torch's store must be; empty: it can be."""
    try:
        found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name localhost does not resolve ({error}): it belongs in /etc/hosts"
    troubles: dict[str, None] = {}
    for family, kind, protocol, _, address in found:
        try:
            with (
                socket.create_server(("", 0), family=family) as server,
                socket.socket(family, kind, protocol) as client,
            ):
                client.settimeout(limit_s / len(found))
                client.connect((address[0], server.getsockname()[1], *address[2:]))
                return ""
        except OSError as error:
            troubles[f"{address[0]}: {error.strerror or error}"] = None
    return f"this machine can't reach itself at localhost ({'; '.join(troubles)}): is its loopback interface up?"


def is_loopback(host: str) -> bool:
    """Whether a name or address stands, on whichever host, for that host itself."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return plain_name(host).partition(".")[0] == "localhost"


def is_loopback_address(host: str) -> bool:
    """Whether it is such an address: who writes one means it, where `localhost` may stand for habit."""
    return is_loopback(host) and plain_name(host).partition(".")[0] != "localhost"


def is_ipv6(host: str) -> bool:
    """Whether the text is an IPv6 address, with a zone (`fe80::1%eth0`) or without; False for any name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version == 6
    except ValueError:
        return False


def plain_name(host: str) -> str:
    """A name as names are compared: case does not matter, nor the dot that ends a full one."""
    return host.strip().rstrip(".").lower()


def names_of(host: str) -> list[str]:
    """What a host is known by here: the name that was written, and the addresses behind it; of this one, its own name.

    Nodes may write the head's name differently, and resolve it differently: two lists that share an entry are of one
    host. What stands for another host on each (127.0.0.1, localhost) is no such entry.
    """
    names = [] if is_loopback(host) else [plain_name(host)]
    own = [plain_name(socket.gethostname())] if is_own(host) else []
    return list(dict.fromkeys([*names, *_addresses(str(address[0]) for _, address in _look_up(host)), *own]))


def own_names() -> list[str]:
    """All that other nodes may know this host by."""
    names = [plain_name(socket.gethostname()), plain_name(socket.getfqdn())]
    return list(dict.fromkeys([*(name for name in names if not is_loopback(name)), *_addresses(own_addresses())]))


def find_listen(host: str) -> Listen:
    """Where to listen for those who reach this machine by a name or address."""
    return where_to_listen(host, [str(address[0]) for _, address in _look_up(host)], own_addresses())


def _addresses(found: Iterable[str]) -> list[str]:
    """In their usual form, without those that stand for another host on each."""
    known = (ipaddress.ip_address(text.partition("%")[0]) for text in found)
    return [str(one) for one in known if not one.is_loopback and not one.is_link_local and not one.is_unspecified]


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address[0], 0))
        except OSError:
            return False
    return True


def _is_reachable(name: str) -> bool:
    try:
        found = socket.getaddrinfo(name, None)
    except OSError:
        return False
    return any(not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
