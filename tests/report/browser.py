"""A real headless Chromium, spoken to over its debugging pipe: opens a page as a person's device would show it.

The protocol is JSON objects that end in a NUL byte, to descriptor 3 and from descriptor 4 of the browser; no driver
and no network port is needed. https://chromedevtools.github.io/devtools-protocol/ names the methods.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import descendants, kill, read_process
from tests.support.waiting import wait_until

ANSWER_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Opened(NamedTuple):
    """What came of opening a page."""

    scroll_width: int
    width: int
    height: int
    requests: list[str]
    """Addresses that the page asked for, itself left out."""
    troubles: list[str]
    """Errors and warnings of the console and the log, exceptions."""


class Browser:
    """One browser with one page."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._to = _pipe()
        self._from, to_write = _pipe()
        environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", program, *_FLAGS]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(to_read, to_write),
                env=environ,
                start_new_session=True,
            )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._session = ""
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._session = ""
        self._call("Browser.close")
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        me = read_process(self._process.pid)
        for process in [*([me] if me else []), *descendants(self._process.pid)]:
            kill(process)
        self._process.wait(30)

    def open(self, page: Path, width: int, is_dark: bool) -> Opened:
        """Load a file at a width in CSS pixels."""
        return self.visit(page.resolve().as_uri(), width, is_dark)

    def visit(self, url: str, width: int, is_dark: bool) -> Opened:
        """Load an address likewise."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if is_dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        if "loaderId" in self._call("Page.navigate", url=url):  # else it is another place of the page that is shown
            self._wait_for("Page.loadEventFired")
        size = self.evaluate(
            "({scroll: document.documentElement.scrollWidth, width: document.documentElement.clientWidth,"
            " height: document.documentElement.scrollHeight})"
        )
        requests = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return Opened(size["scroll"], size["width"], size["height"], [r for r in requests if r != url], self.troubles())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for_text(self, texts: Sequence[str], timeout_s: float = 60.0) -> str:
        """What the page shows as soon as it has all of these. Raises AssertionError that has what it shows instead."""
        found = ""

        def read() -> bool:
            nonlocal found
            found = str(self.evaluate("document.body.innerText"))
            return all(text in found for text in texts)

        try:
            wait_until(read, timeout_s, "the page", every_s=0.05)
        except TimeoutError:
            missing = [text for text in texts if text not in found]
            raise AssertionError(f"the page does not show {missing}, but:\n{found}") from None
        return found

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The whole page as a PNG, or its first `height` pixels."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def troubles(self) -> list[str]:
        """What the page has got wrong since it was opened."""
        found = []
        for event in self._events:
            params = event["params"]
            if event["method"] == "Log.entryAdded":
                found.append(str(params["entry"].get("text")))
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("text")))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(f"console.{params['type']}")
        return found

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + ANSWER_S
        while not any(event["method"] == method for event in self._events):
            self._read(deadline)

    def _read(self, deadline: float) -> dict[str, Any]:
        """The next message; events are kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(head)
        if "method" in message:
            self._events.append(message)
        return message


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are neither 3 nor 4: those are the browser's."""
    ends = os.pipe()
    high = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10)
    for end in ends:
        os.close(end)
    return high
