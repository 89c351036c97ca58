"""Who gets in: what a request must have before anything is done for it. Pure.

    any request      names this machine as loopback in Host, so that no other site's name can be made to lead here
    /api             has the token in a header, which no page of another origin can send without being asked first; and
                     where the browser says who sends it, that is this page
    what acts        comes from this page's own origin, and says so

The token is no cookie: browsers send the cookies of 127.0.0.1 to every port, and other ports are other users'.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import NamedTuple

MAX_HEADERS = 64
MAX_PATH = 1024
TOKEN_BYTES = 32
TOKEN_HEADER = "x-guardrun-token"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""With any port: what ssh -L listens on has another one."""

_COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGE_HEADERS = {
    **_COMMON,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Frame-Options": "DENY",
}
"""Of guardctl web's own page, and of data."""
REPORT_HEADERS = {
    **_COMMON,
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'",
}
"""Of a page that lies in a run's folder, where the script may write as well: it runs nothing, fetches nothing, and is
of no origin, whatever it holds."""


class Refused(NamedTuple):
    """Why a request is not answered."""

    status: int
    why: str


class Headers:
    """A request's, by their names in lower case."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self.count = len(raw)
        self._values: dict[str, list[str]] = {}
        for name, value in raw[:MAX_HEADERS]:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str:
        """The only value of this name; empty where there is none, or are several."""
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else ""


def new_token() -> str:
    """Another one than anybody has."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def find_fault(method: str, path: str, headers: Headers, token: str) -> Refused | None:
    """Why this request is refused; None: it is not."""
    if headers.count > MAX_HEADERS:
        return Refused(431, "too many headers")
    if len(path) > MAX_PATH:
        return Refused(414, "the address is too long")
    host = headers.one("host").lower()
    if _name_of(host) not in HOSTS:
        return Refused(421, "this is reached as 127.0.0.1 or localhost alone")
    if method not in ("GET", "HEAD", "POST"):
        return Refused(405, "GET and POST are all there is")
    if method != "POST" and not path.startswith("/api/"):
        return None
    if headers.one("sec-fetch-site") not in ("", "same-origin"):
        return Refused(403, "another page asks for this")
    if method == "POST" and headers.one("origin").lower() != f"http://{host}":
        return Refused(403, "what acts must come from this page")
    if not hmac.compare_digest(headers.one(TOKEN_HEADER).encode(), token.encode()):
        return Refused(403, "the token is missing, or is not that of this guardctl web")
    return None


def _name_of(host: str) -> str:
    """`localhost` of `localhost:8760`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and not port.endswith("]") else host
