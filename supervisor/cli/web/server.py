"""The process of `guardctl web`: uvicorn on a socket of loopback, with bounds that neighbours can't widen.

Anybody on the machine can connect. Whoever does not get a whole request there within ten seconds is let go, as is who
takes a minute over an answer; where too many are connected, those that have not shown the token go first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.web.access import new_token
from guardrun.supervisor.cli.web.app import LONG_S, App, Message, Receive, Send
from guardrun.supervisor.cli.web.runs import Runs
from guardrun.supervisor.cli.web.token_file import remove_token, write_token

MAX_CONNECTIONS = 64
REQUEST_S = 10.0
KEEP_S = 30
SWEEP_S = 2.0
MAX_HEAD_BYTES = 16 << 10


class Connections:
    """Those that are open, and since when each is expected to say, or to take, something."""

    def __init__(self) -> None:
        self._known: dict[Connection, float] = {}
        self._trusted: set[Any] = set()

    def add(self, one: Connection) -> None:
        """It has been made. Where there are too many, another one goes."""
        if len(self._known) >= MAX_CONNECTIONS:
            strangers = [known for known in self._known if known.client not in self._trusted]
            oldest = next(iter(strangers or self._known))
            self.remove(oldest)
            oldest.transport.abort()
        self._known[one] = time.monotonic() + REQUEST_S

    def remove(self, one: Connection) -> None:
        """It is no more."""
        self._known.pop(one, None)
        self._trusted.discard(one.client)

    def expect(self, client: Any, seconds: float) -> None:
        """Something is to happen at this connection within so long."""
        for one in self._known:
            if one.client == client:
                self._known[one] = time.monotonic() + seconds
                return

    def trust(self, client: Any) -> None:
        """It has shown the token."""
        self._trusted.add(client)

    def sweep(self) -> None:
        """End those of which that has not happened."""
        now_s = time.monotonic()
        for one in [one for one, until_s in self._known.items() if until_s < now_s]:
            self.remove(one)
            one.transport.abort()


class Connection(H11Protocol):
    """One."""

    all: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio calls it."""
        super().connection_made(transport)
        self.all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Likewise."""
        self.all.remove(self)
        super().connection_lost(exc)


def bind(port: int | None, usual: int) -> socket.socket:
    """A socket of loopback; port: None: the usual one, or any where that is taken. Raises CtlError."""
    troubles = []
    for wanted in [usual, 0] if port is None else [port]:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                bound = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                troubles.append(f"{host}: {error.strerror}")
                continue
            try:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind((host, wanted))
                bound.listen(128)
                return bound
            except OSError as error:
                bound.close()
                troubles.append(f"{host} port {wanted}: {error.strerror}")
                if error.errno == errno.EADDRINUSE:
                    break
    raise CtlError(f"it can't listen on loopback ({'; '.join(troubles)}): --port N names another port")


def serve(
    bound: socket.socket, directory: Path, node: str, environ: Mapping[str, str], announce: Callable[[str, Path], None]
) -> None:
    """Serve until a signal ends it. announce: called with the token and its file. Raises CtlError."""
    token = new_token()
    try:
        path = write_token(environ, bound.getsockname()[1], token)
    except OSError as error:
        raise CtlError(f"the token can't be kept: {error.filename}: {error.strerror or error}") from None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        announce(token, path)
        asyncio.run(_serve(bound, Runs(directory, node, environ), token, path))
    finally:
        remove_token(path, token)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


async def _serve(bound: socket.socket, runs: Runs, token: str, path: Path) -> None:
    connections = Connections()
    app = App(runs, token, str(path), connections.trust)

    class Counted(Connection):
        all = connections

    async def timed(scope: Message, receive: Receive, send: Send) -> None:
        connections.expect(scope["client"], LONG_S + REQUEST_S)
        try:
            await app(scope, receive, send)
        finally:
            connections.expect(scope["client"], KEEP_S)

    async def tend() -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            connections.sweep()
            runs.forget()

    # What clients get wrong is no news on the terminal; what is wrong here is.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        timed,
        http=Counted,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    tending = asyncio.create_task(tend())
    try:
        await uvicorn.Server(config).serve([bound])
    finally:
        tending.cancel()
