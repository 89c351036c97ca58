"""Through which interfaces the ranks of a job of several nodes reach each other, as far as that can be told."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping

from guardrun.supervisor.preflight.checks.interfaces import parse_names, parse_nccl

_SIOCGIFADDR = 0x8915
"""The address of an interface, by its name (netdevice(7))."""
_CHOSEN_BY = {"NCCL_SOCKET_IFNAME": parse_nccl, "GLOO_SOCKET_IFNAME": parse_names, "TP_SOCKET_IFNAME": parse_names}


def links_of_job(address: str, environ: Mapping[str, str]) -> set[str]:
    """Names of interfaces: those that the user has chosen for NCCL or gloo, and the one with this node's address.

    address: at which other nodes reach this one, a name or a number.
    """
    present = [name for _, name in socket.if_nameindex() if name != "lo"]
    chosen = {
        name
        for variable, parse in _CHOSEN_BY.items()
        if environ.get(variable)
        for name in parse(environ[variable]).chosen(present)
    }
    own = _numbers(address)
    return chosen | {name for name in present if _address(name) in own}


def _numbers(address: str) -> set[str]:
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(place[0]) for *_, place in found}


def _address(interface: str) -> str:
    """IPv4; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            asked = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(asked[20:24])
