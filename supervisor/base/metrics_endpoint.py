"""`/metrics` over HTTP, on loopback unless the configuration says otherwise.

Each connection has a thread of its own and REQUEST_S in all, however slowly its client sends or reads. The figures are
read for one scrape at a time: what reads them is the loop that supervises.

prometheus_client is imported when a server is started, and not before: most supervisors serve none.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

REQUEST_S = 10.0
"""A connection's whole time, from its being accepted: what Prometheus gives a scrape by default."""
MAX_AT_ONCE = 64
"""Connections that are served at once; a further one is closed as soon as it is accepted."""
ANSWER_S = 2.0
"""For the loop that knows the figures."""
LOOPBACK = "127.0.0.1"


class Series(NamedTuple):
    """One metric, for whoever makes many: its values by their labels' values."""

    name: str
    help: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float]
    is_counter: bool = False


class NoAnswerError(Exception):
    """The loop that knows did not answer in time."""


def parse_listen(text: str) -> tuple[str, int]:
    """`19470`, `:19470`, `[::1]:19470` or `HOST:PORT` as host and port; without a host it is loopback.

    Raises ValueError.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is no address: expected PORT or HOST:PORT, as in 127.0.0.1:19470")
    return host.strip("[]") or LOOPBACK, int(port)


def as_metrics(series: Iterable[Series]) -> Iterator[Metric]:
    """As prometheus_client has them."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    for one in series:
        family = (CounterMetricFamily if one.is_counter else GaugeMetricFamily)(one.name, one.help, labels=one.labels)
        for labels, value in one.values.items():
            family.add_metric([_as_utf8(label) for label in labels], value)
        yield family


def _as_utf8(text: str) -> str:
    """A mount point may be any bytes: one that is no UTF-8 would cost the whole scrape."""
    return text.encode("utf-8", "backslashreplace").decode()


def ask_loop(post: Callable[[Callable[[], object]], None], read: Callable[[], list[Series]]) -> list[Series]:
    """Have a loop read its own figures, from another thread. Raises NoAnswerError."""
    done = threading.Event()
    found: list[Series] = []

    def answer() -> None:
        try:
            found.extend(read())
        finally:
            done.set()

    post(answer)
    if not done.wait(ANSWER_S):
        raise NoAnswerError
    return found


class MetricsServer:
    """Serves until close()."""

    def __init__(self, listen: str, read: Callable[[], list[Series]]) -> None:
        """read: called in this server's thread, at each scrape; may raise NoAnswerError.

        Raises ValueError where listen is no address, OSError where nobody can listen there.
        """
        from prometheus_client.exposition import choose_encoder

        class Registry:
            def collect(self) -> Iterator[Metric]:
                return as_metrics(read())

        reading = threading.Lock()

        def render(accept: str) -> tuple[bytes, str]:
            encode, kind = choose_encoder(accept)
            if not reading.acquire(timeout=ANSWER_S):
                raise NoAnswerError
            try:
                return encode(Registry()), kind
            finally:
                reading.release()

        self.asked = listen
        host, port = parse_listen(listen)
        self._server = _Server(host, port, render)
        self._thread = threading.Thread(target=self._server.serve, name="guardrun-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`HOST:PORT`, the real port where 0 was asked for."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop listening; waits up to REQUEST_S for scrapes that are under way."""
        self._server.stop()
        self._thread.join(REQUEST_S)
        self._server.server_close()


class _Open(NamedTuple):
    until_s: float
    thread: threading.Thread


class _Server(HTTPServer):
    request_queue_size = MAX_AT_ONCE

    def __init__(self, host: str, port: int, render: Callable[[str], tuple[bytes, str]]) -> None:
        self.render = render
        self.is_over = False
        self._lock = threading.Lock()
        """Held where a connection is looked up or closed: its descriptor's number is soon another's."""
        self._open: dict[socket.socket, _Open] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this machine's full name that HTTPServer makes, which may take half a minute."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def serve(self) -> None:
        """Wait without waking up while nobody is connected; serve_forever would, twice a second."""
        while not self.is_over:
            with self._lock:
                first_s = min((one.until_s for one in self._open.values()), default=None)
            self.timeout = None if first_s is None else max(0.0, first_s - time.monotonic())
            self.handle_request()
            self._end(time.monotonic())

    def stop(self) -> None:
        self.is_over = True
        self.socket.shutdown(socket.SHUT_RDWR)  # which ends the waiting

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            threads = [one.thread for one in self._open.values()]
        self._end(float("inf"))
        for thread in threads:
            thread.join(2 * ANSWER_S)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            return len(self._open) < MAX_AT_ONCE

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve_one, args=(request, client_address), name="guardrun-scrape", daemon=True
        )
        with self._lock:
            self._open[request] = _Open(time.monotonic() + REQUEST_S, thread)
        try:
            thread.start()
        except RuntimeError:  # no room for another thread; the caller closes it
            with self._lock:
                del self._open[request]
            raise

    def _serve_one(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self.shutdown_request(request)

    def _end(self, now_s: float) -> None:
        """Shut the connections whose time is over: whoever reads or writes there goes on at once, and closes it."""
        with self._lock:
            for request in [request for request, one in self._open.items() if one.until_s <= now_s]:
                del self._open[request]
                with suppress(OSError):  # the client has gone
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path.split("?")[0] != "/metrics":
            self._answer(404, b"metrics are at /metrics\n", "text/plain")
            return
        try:
            data, kind = self.server.render(self.headers.get("Accept", ""))
        except NoAnswerError:
            self._answer(503, b"busy: the figures did not come in time\n", "text/plain")
            return
        self._answer(200, data, kind)

    def _answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""
