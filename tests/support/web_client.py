"""A client of `guardctl web`: the real process, spoken to as browsers and strangers do."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "web"]
ENDED = 128 + signal.SIGTERM


class Response(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class WebClient:
    """Starts it for a folder of runs."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, str(folder), "--json", *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.address: str = told["address"]
        self.base, _, self.token = self.address.partition("/#token=")
        self.port: int = told["port"]
        self.token_file = Path(told["token_file"])

    def close(self) -> int:
        """Its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(30)
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
        return code

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None, **headers: str | None
    ) -> Response:
        """One request as the page would send it. headers: `sec_fetch_site`, …; None: not sent. token: another one."""
        return self._ask(method, path, body, self.token if token is None else token, headers)

    def _ask(
        self, method: str, path: str, body: bytes | None, token: str, headers: Mapping[str, str | None]
    ) -> Response:
        sent = {
            "Host": f"127.0.0.1:{self.port}",
            "Accept-Encoding": "gzip",
            "X-Guardrun-Token": token,
            **({"Origin": self.base, "Content-Type": "application/json"} if method == "POST" else {}),
        }
        given = {name.replace("_", "-").title(): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**sent, **given}.items():
                if value:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            data = answer.read()
        finally:
            connection.close()
        return Response(
            answer.status, found, gzip.decompress(data) if found.get("content-encoding") == "gzip" else data
        )

    def get(self, path: str, **headers: str | None) -> Response:
        return self._ask("GET", path, None, self.token, headers)

    def post(self, path: str, data: Any = None, **headers: str | None) -> Response:
        return self._ask("POST", path, json.dumps({} if data is None else data).encode(), self.token, headers)


def environment(runtime: Path, **changes: str) -> dict[str, str]:
    """What it is started with: its token lies in a folder of the test's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN_")}
    return {**kept, "XDG_RUNTIME_DIR": str(runtime), **changes}
