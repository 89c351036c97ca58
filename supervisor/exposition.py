"""`/metrics` over HTTP: one thread, one scrape at a time, on loopback unless the configuration says otherwise.

prometheus_client is imported when a server is started, and not before: most supervisors serve none.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

REQUEST_S = 5.0
"""A client that sends nothing is let go after this long."""
ANSWER_S = 2.0
"""For the loop that knows the figures."""
LOOPBACK = "127.0.0.1"

Read = Callable[[], "Iterable[Metric]"]


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
            family.add_metric(labels, value)
        yield family


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

        def render(accept: str) -> tuple[bytes, str]:
            encode, kind = choose_encoder(accept)
            return encode(Registry()), kind

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
        self._server.stop()
        self._thread.join(REQUEST_S)
        self._server.server_close()


class _Server(HTTPServer):
    request_queue_size = 16

    def __init__(self, host: str, port: int, render: Callable[[str], tuple[bytes, str]]) -> None:
        self.render = render
        self.is_over = False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of this machine's full name that HTTPServer makes, which may take half a minute."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def serve(self) -> None:
        """Wait without waking up; serve_forever would, twice a second."""
        while not self.is_over:
            self.handle_request()

    def stop(self) -> None:
        self.is_over = True
        self.socket.shutdown(socket.SHUT_RDWR)  # which ends the waiting

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
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
