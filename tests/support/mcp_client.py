"""A client of `guardctl mcp`: lines of JSON-RPC to and from the real process, as an assistant's program sends them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "mcp"]
VERSION = "2025-06-18"
"""Of the protocol; which others the server speaks is its library's business."""


class Reply(NamedTuple):
    """What a tool has answered."""

    text: str
    is_error: bool


class McpClient:
    """One connection. `close` ends it, and answers the exit code."""

    def __init__(self, *arguments: str, cwd: Path, program: Sequence[str] = COMMAND) -> None:
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._last_id = 0
        self._buffer = b""
        self._answers: dict[int | None, dict[str, Any]] = {}
        about = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.greeting: dict[str, Any] = self.request("initialize", about)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        """Send a message, or bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def begin(self, method: str, params: object = None) -> int:
        """Send a request; answers its id."""
        self._last_id += 1
        self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}})
        return self._last_id

    def wait(self, number: int | None) -> dict[str, Any]:
        """The answer to a request; others that come before it are kept."""
        assert self.process.stdout is not None
        while number not in self._answers:
            while b"\n" not in self._buffer:
                chunk = self.process.stdout.read(1 << 16)
                assert chunk, "the server has ended"
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = json.loads(line)  # nothing but the protocol is on standard output
            self._answers[message["id"]] = message
        return self._answers.pop(number)

    def request(self, method: str, params: object = None) -> dict[str, Any]:
        """Send a request, and wait for its answer."""
        return self.wait(self.begin(method, params))

    def tools(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {tool["name"]: tool for tool in self.request("tools/list")["result"]["tools"]}

    def begin_call(self, tool: str, arguments: Mapping[str, object] | None = None) -> int:
        """Call a tool; answers the request's id."""
        return self.begin("tools/call", {"name": tool, "arguments": dict(arguments or {})})

    def reply(self, number: int) -> Reply:
        """What a tool that was called has answered."""
        result = self.wait(number)["result"]
        [content] = result["content"]
        return Reply(content["text"], result.get("isError", False))

    def call(self, tool: str, arguments: Mapping[str, object] | None = None) -> Reply:
        """Call a tool, and wait for its answer."""
        return self.reply(self.begin_call(tool, arguments))

    def calls(self, calls: Sequence[tuple[str, Mapping[str, object]]]) -> list[Reply]:
        """Call several at once."""
        return [self.reply(number) for number in [self.begin_call(*call) for call in calls]]

    def close(self) -> int:
        """Say no more; answers the exit code of the server, which has ended."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
            return self.process.wait(60)
        finally:
            self.kill()

    def stderr(self) -> str:
        """What it has logged, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def kill(self) -> None:
        """Whatever has become of it."""
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def __enter__(self) -> McpClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        assert self.process.stderr is not None
        self.process.stderr.close()


def unquoted(text: str) -> str:
    """Of an answer, the lines that do not quote the run."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("|"))
