"""A process for each call of a tool: started, given its request, waited for, and ended whatever happens."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.cli.assistants.answers import MAX_KEPT, Answer
from guardrun.supervisor.cli.assistants.tools import TOOLS, Arguments, Tool
from guardrun.supervisor.cli.assistants.worker import MODULE, Request

AT_ONCE = 2
"""Calls of one tool; further ones wait, and no tool waits for another."""
MAX_WAITING = 16
"""Calls of one tool that have not been answered; further ones are refused."""
MAX_BYTES = 16 * MAX_KEPT
"""Of an answer, as it comes."""


class Workers:
    """Has calls of tools done."""

    def __init__(self, folders: tuple[Path, ...], cwd: Path) -> None:
        self._folders, self._cwd = folders, cwd
        self._rooms = {tool.name: anyio.Semaphore(AT_ONCE) for tool in TOOLS}
        self._counts = dict.fromkeys(self._rooms, 0)

    async def call(self, tool: Tool, arguments: Arguments) -> Answer:
        """Have it done. Whoever cancels this has the process ended."""
        if self._counts[tool.name] >= MAX_WAITING:
            return _none(tool, f"{MAX_WAITING} calls of it have no answer yet: wait for these.")
        self._counts[tool.name] += 1
        try:
            async with self._rooms[tool.name]:
                return await self._run(tool, arguments)
        finally:
            self._counts[tool.name] -= 1

    async def _run(self, tool: Tool, arguments: Arguments) -> Answer:
        request = Request(
            tool=tool.name,
            arguments=arguments,
            folders=[str(folder) for folder in self._folders],
            cwd=str(self._cwd),
            parent=os.getpid(),
        )
        # In a folder where no module lies that its own would be taken for.
        process = await anyio.open_process(
            [sys.executable, "-m", MODULE], stdin=PIPE, stdout=PIPE, stderr=None, cwd="/", start_new_session=True
        )
        try:
            with anyio.fail_after(tool.seconds):
                data = await _exchange(process, encode_msgpack(request))
            return msgspec.msgpack.decode(data, type=known_type(Answer))
        except TimeoutError:
            return _none(tool, f"it took longer than {tool.seconds:g} s, and was ended.")
        except (msgspec.DecodeError, anyio.BrokenResourceError):
            return _none(tool, "its process ended without an answer, or was ended for what it took.")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):  # with what it has started: py-spy
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()


async def _exchange(process: anyio.abc.Process, request: bytes) -> bytes:
    """Hand over the request, and read the answer to its end. Raises BrokenResourceError where it has no end."""
    assert process.stdin is not None and process.stdout is not None
    await process.stdin.send(request)
    await process.stdin.aclose()
    data = bytearray()
    async for chunk in process.stdout:
        data += chunk
        if len(data) > MAX_BYTES:
            raise anyio.BrokenResourceError
    return bytes(data)


def _none(tool: Tool, why: str) -> Answer:
    return Answer(said=f"{tool.name}: no answer: {why}", is_error=True)
