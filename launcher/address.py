"""The address at which other nodes reach this one."""

from __future__ import annotations

import ipaddress
import socket

NOWHERE = "192.0.2.1"
"""Of a network that does not exist (RFC 5737): asking for the way there sends nothing."""


def find_address(local_addr: str | None = None) -> str:
    """What torchrun would name this host (--local-addr, else its full name), where other hosts could use that.

    A name that stands for this host alone, as Debian's 127.0.1.1 does, is replaced by the address on the way out.
    """
    name = local_addr or socket.getfqdn()
    if _is_reachable(name):
        return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((NOWHERE, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return name if local_addr else "localhost"


def is_own(host: str) -> bool:
    """Whether a host's name or address is this host's: something can be bound there."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


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
