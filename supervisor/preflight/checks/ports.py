"""Is the master port that the user named free? Only then can the ranks' store be served there."""

from __future__ import annotations

import errno
import os
import re
import socket
from contextlib import suppress

from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, ok, refuse, warn

NAME = "ports"
_LISTEN = "0A"
"""TCP_LISTEN of linux/net/tcp_states.h, as /proc/net/tcp shows it."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def try_port(port: int) -> OSError | None:
    """Why a store cannot listen on a port, as torch's would: on all addresses, taking one that is just being let go."""
    is_v6 = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            one.bind(("::" if is_v6 else "0.0.0.0", port))
            one.listen(1)
        except (OSError, OverflowError) as error:
            return error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
    return None


def parse_listeners(text: str, port: int) -> set[int]:
    """Inodes of the sockets that listen on a port, of /proc/net/tcp or tcp6 (proc(5))."""
    inodes = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(int(fields[9]))
    return inodes


def find_holder(port: int) -> str:
    """Who listens there: `python train.py (pid 4242)`; empty where that may not be seen."""
    inodes: set[int] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError), open(f"/proc/net/{name}", encoding="ascii") as file:
            inodes |= parse_listeners(file.read(), port)
    for pid in os.listdir("/proc") if inodes else ():
        if pid.isdigit() and _holds(pid, inodes):
            with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read(400).replace(b"\0", b" ").decode("utf-8", "replace").strip()
                return f"{words[:120]} (pid {pid})"
    return ""


def _holds(pid: str, inodes: set[int]) -> bool:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))
                if match and int(match[1]) in inodes:
                    return True
    return False


def check_port(port: int) -> Remark:
    """A refusal where somebody holds the port, a warning where it cannot be used for another reason."""
    error = try_port(port)
    if error is None:
        return ok(NAME, f"Master port {port} is free.", port=port)
    if error.errno == errno.EADDRINUSE:
        holder = find_holder(port)
        return refuse(
            NAME,
            f"Master port {port} is in use" + (f", by {holder}." if holder else "."),
            "End what holds it, or choose another --master-port; --standalone takes any that is free.",
            port=port,
            holder=holder,
        )
    return warn(NAME, f"Master port {port}: {error.strerror or error}.", "Choose another --master-port.", port=port)


def run(subject: Subject) -> list[Remark]:
    """One remark; a port that nobody prescribed is not looked at."""
    if subject.port is None:
        return [ok(NAME, "No master port is prescribed: one that is free is taken.")]
    return [check_port(subject.port)]


CHECK = Check(NAME, run, needs_run=True)
