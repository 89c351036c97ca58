"""At which addresses and ports a process listens for TCP, in whichever network namespace it is."""

from __future__ import annotations

import ipaddress
import re
import sys
from pathlib import Path

from tests.support.processes import read_descriptors

_LISTEN = "0A"
"""TCP_LISTEN of linux/net/tcp_states.h."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def read_listeners(pid: int) -> set[tuple[str, int]]:
    """(address, port) of each; one of IPv4 that is bound within IPv6 as that of IPv4."""
    inodes = {match[1] for link in read_descriptors(pid) if (match := _SOCKET.fullmatch(link))}
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((parse_address(address), int(port, 16)))
    return found


def parse_address(text: str) -> str:
    """As proc(5) has it: words of four bytes, each in the host's order."""
    words = [bytes.fromhex(text[place : place + 8]) for place in range(0, len(text), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
