"""sd_notify(3): telling systemd how a service is doing, over the socket that it names in the environment.

Outside systemd there is no such socket, and all of this does nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, MutableMapping

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


class Notifier:
    """Sends states; never blocks, never raises: what systemd can't take now is dropped."""

    def __init__(self, address: str = "") -> None:
        """address: a path, or a name of the abstract namespace after an `@`; empty: nobody listens."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    @classmethod
    def take_from(cls, environ: MutableMapping[str, str]) -> Notifier:
        """The notifier that systemd meant for this process: taken out of the environment, so that no child has it."""
        return cls(environ.pop(SOCKET_VARIABLE, ""))

    @property
    def is_heard(self) -> bool:
        """Whether there is a systemd to tell."""
        return self._socket is not None

    def send(self, *states: str) -> None:
        """Send `NAME=value` lines as one message."""
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(states).encode("utf-8", "replace"), self._address)
        except OSError:
            pass

    def ready(self, status: str) -> None:
        """The service has started, or has reloaded (READY=1). status: one line for `systemctl status`."""
        self.send("READY=1", f"STATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """One line, for `systemctl status`."""
        self.send(f"STATUS={_one_line(text)}")

    def watchdog(self) -> None:
        """A sign of life, due every `watchdog_s` at least (WATCHDOG=1)."""
        self.send("WATCHDOG=1")

    def reloading(self) -> None:
        """Type=notify-reload, and newer systemctl, want to know when it began; READY=1 says that it is over."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "stopping") -> None:
        """The service is about to end by itself (STOPPING=1)."""
        self.send("STOPPING=1", f"STATUS={_one_line(status)}")

    def close(self) -> None:
        """From then on nothing is sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """How often WATCHDOG=1 must be told at the very least, in seconds; 0: systemd does not watch this process."""
    meant = environ.get(WATCHDOG_PID_VARIABLE, "")
    if meant and meant != str(pid):
        return 0.0
    try:
        return max(0.0, int(environ.get(WATCHDOG_VARIABLE, "0")) / 1e6)
    except ValueError:
        return 0.0


def _one_line(text: str) -> str:
    return " ".join(text.split())
