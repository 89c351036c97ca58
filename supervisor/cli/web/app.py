"""What `guardctl web` answers to which request: an ASGI application.

GET reads. POST acts, or has a supervisor or a process do something, and is let in by access.py alone.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.cli.base.verb import CtlError
from guardrun.supervisor.cli.web.access import PAGE_HEADERS, REPORT_HEADERS, Headers, Refused, find_fault
from guardrun.supervisor.cli.web.orders import ORDERS
from guardrun.supervisor.cli.web.reports import Tickets, make_run_page, read_incident_page
from guardrun.supervisor.cli.web.runs import KNOWN_WAIT_S, WAIT_S, Runs, Shown
from guardrun.supervisor.cli.web.watched_run import encode
from guardrun.supervisor.report.elements.html_page import STYLE

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MAX_BODY, BODY_S = 4096, 10.0
ORDER_WAIT_S = 7.0
GZIP_BYTES = 1024
LONG_S = 60.0
"""No answer is worked at for longer."""


class Reply(NamedTuple):
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = PAGE_HEADERS


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST that acts."""

    order: str
    run: str
    """The run's name once more: what was confirmed is what is done."""


class ReportWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of one that wants a report's page."""

    incident: str = ""
    """The name of its folder; empty: the run's."""


class App:
    """Of one folder of runs."""

    def __init__(self, runs: Runs, token: str, token_file: str, on_trusted: Callable[[Any], None]) -> None:
        """token_file: where whoever started this can read it. on_trusted: called with a client that has the token."""
        self._runs, self._token, self._token_file, self._on_trusted = runs, token, token_file, on_trusted
        self._tickets = Tickets()
        self._files = {
            f"/page/{path.relative_to(PAGE).as_posix()}": path
            for path in PAGE.rglob("*")
            if path.suffix in TYPES and path.is_file()
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope["headers"])
        try:
            reply = await asyncio.wait_for(self._answer(scope, headers, receive), LONG_S)
        except (asyncio.TimeoutError, TimeoutError):
            reply = _trouble(504, "this takes too long")
        await _send(send, reply, headers, is_head=scope["method"] == "HEAD")

    async def _answer(self, scope: Message, headers: Headers, receive: Receive) -> Reply:
        method, path = scope["method"], scope["path"]
        fault = find_fault(method, path, headers, self._token)
        if fault is not None:
            return self._refuse(fault)
        if not path.startswith("/api/"):
            return self._page(method, path)
        self._on_trusted(scope["client"])
        parts = path.split("/")[2:]
        try:
            if method == "POST":
                return await self._post(parts, await asyncio.wait_for(_read_body(headers, receive), BODY_S))
            return await self._get(parts, parse_qs(scope["query_string"].decode("latin-1")[:512]))
        except CtlError as error:
            return _trouble(404 if method != "POST" else 409, str(error))
        except _BadBody as error:
            return _trouble(400, str(error))
        except OSError as error:
            return _trouble(500, f"{error.filename or 'a file'}: {error.strerror or error}")

    def _refuse(self, fault: Refused) -> Reply:
        body = {"error": fault.why, "token_file": self._token_file}
        return Reply(encode(body if fault.status == 403 else {"error": fault.why}), fault.status)

    def _page(self, method: str, path: str) -> Reply:
        if method == "POST":
            return _trouble(405, "nothing acts here")
        if path.startswith("/report/"):
            page = self._tickets.redeem(path.removeprefix("/report/"))
            if page is None:
                return _trouble(404, "this page was fetched already, or is too old: open it anew")
            return Reply(page, 200, "text/html; charset=utf-8", REPORT_HEADERS)
        if path == "/page/house.css":
            return Reply(STYLE.encode(), 200, "text/css; charset=utf-8")
        file = PAGE / "index.html" if path == "/" else self._files.get(path)
        if file is None:
            return _trouble(404, "there is no such page")
        return Reply(file.read_bytes(), 200, f"{TYPES[file.suffix]}; charset=utf-8")

    async def _get(self, parts: list[str], query: dict[str, list[str]]) -> Reply:
        match parts:
            case ["runs"]:
                return Reply(await self._runs.list())
            case ["runs", name]:
                return _known(await (await self._find(name)).view.ask(WAIT_S, KNOWN_WAIT_S))
            case ["runs", name, "curves"]:
                shown = await self._find(name)
                await shown.view.ask(WAIT_S, 0.0)
                return Reply(shown.watched.curves(int(_number(query, "folds", -1)), _number(query, "since", 0.0)))
            case ["runs", name, "nodes"]:
                shown = await self._find(name)
                await shown.view.ask(WAIT_S, KNOWN_WAIT_S)
                return Reply(shown.watched.nodes)
            case ["runs", name, "modules"]:
                return Reply(await self._runs.threads.run((await self._find(name)).orders.modules))
        return _trouble(404, "there is no such question")

    async def _post(self, parts: list[str], body: bytes) -> Reply:
        match parts:
            case ["runs", name, "stacks"]:
                return _known(await (await self._find(name)).stacks.ask(30.0, 30.0))
            case ["runs", name, "order"]:
                order = _decode(body, Order)
                if order.order not in ORDERS:
                    raise _BadBody(f"there is: {', '.join(ORDERS)}")
                if order.run != name:
                    raise _BadBody("another run was confirmed")
                return Reply(encode(await self._runs.order(await self._find(name), order.order, ORDER_WAIT_S)))
            case ["runs", name, "report"]:
                wanted = _decode(body, ReportWanted).incident
                run_dir, environ = (await self._find(name)).watched.run_dir, self._runs.environ
                page = await self._runs.reports.run(
                    lambda: read_incident_page(run_dir, wanted) if wanted else make_run_page(run_dir, environ)
                )
                return Reply(encode({"page": f"/report/{self._tickets.add(page)}"}))
        return _trouble(404, "nothing acts here")

    async def _find(self, name: str) -> Shown:
        return await self._runs.find(name)


class _BadBody(Exception):
    """A request whose body is not what it should be."""


def _known(document: bytes | None) -> Reply:
    return Reply(document) if document is not None else _trouble(503, "not read yet")


def _trouble(status: int, why: str) -> Reply:
    return Reply(encode({"error": why}), status)


def _number(query: dict[str, list[str]], name: str, otherwise: float) -> float:
    try:
        found = float(query.get(name, [""])[0])
    except ValueError:
        return otherwise
    return found if abs(found) < 1e15 else otherwise


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=known_type(kind))
    except msgspec.DecodeError as error:
        raise _BadBody(str(error)) from None


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    if headers.one("content-type").partition(";")[0].strip().lower() != "application/json":
        raise _BadBody("the body is to be JSON")
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _BadBody("it breaks off")
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > MAX_BODY:
            raise _BadBody("the body is too long")
        if not message.get("more_body", False):
            return body


async def _send(send: Send, reply: Reply, headers: Headers, *, is_head: bool) -> None:
    status, body, told = reply.status, reply.body, dict(reply.headers)
    told |= {"Content-Type": reply.content_type, "X-Guardrun-Now": f"{time.time():.2f}"}
    if status == 200:
        told["ETag"] = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        if headers.one("if-none-match") == told["ETag"]:
            status, body = 304, b""
        elif len(body) >= GZIP_BYTES and "gzip" in headers.one("accept-encoding"):
            body = gzip.compress(body, 4)
            told["Content-Encoding"] = "gzip"
    if status != 304:
        told["Content-Length"] = str(len(body))
    raw = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
