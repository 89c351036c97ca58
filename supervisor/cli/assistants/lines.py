"""Standard input and output as the protocol has them: a message a line. Lines in are bounded; nobody waits for ever.

Threads read and write, as daemons: a client that neither sends nor reads keeps no process from its end. Whatever else
this process prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

import anyio

MAX_MESSAGE = 1 << 20
"""Bytes of a line; a longer one is left out, and said so on standard error."""
CHUNK = 1 << 16
QUEUED = 16
"""Messages that have been read, or are to be written, and wait for their turn."""


class Lines:
    """Both ends of the line, for the loop that makes it."""

    def __init__(self) -> None:
        # At fd 0 and 1 lie others then: no child inherits the client's.
        self._source, self._target = _move(0, os.open(os.devnull, os.O_RDONLY)), _move(1, os.dup(2))
        for fd in (self._source, self._target):  # whatever the client's program has made of its end
            os.set_blocking(fd, True)
        self._loop = asyncio.get_running_loop()
        self._in_send, self._in = anyio.create_memory_object_stream[str](QUEUED)
        self._out, self._out_receive = anyio.create_memory_object_stream[str](QUEUED)
        self.is_over = anyio.Event()
        """Nobody reads any more, or all has been written."""
        self.has_ended = anyio.Event()
        """The client says no more."""
        self._fetched = ""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._in.__aiter__()

    async def write(self, line: str) -> None:
        """Write a message, which has no line breaks; where nobody reads any more, nothing."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._out.send(f"{line}\n")

    def end(self) -> None:
        """No more is going to be written; `is_over` once all has been."""
        self._out.close()

    def close(self) -> None:
        """Nobody waits for either end any more."""
        self._in.close()
        self._out_receive.close()

    # In threads -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        held = bytearray()
        is_too_long = False
        while chunk := _read_chunk(self._source):
            first, *others = chunk.split(b"\n")
            held += first
            for begun in others:
                if not is_too_long and len(held) <= MAX_MESSAGE:
                    if not self._hand_in(held.decode("utf-8", "replace")):
                        return
                elif not is_too_long:
                    _complain()
                held, is_too_long = bytearray(begun), False
            if len(held) > MAX_MESSAGE:
                if not is_too_long:
                    _complain()
                held, is_too_long = bytearray(), True
        if held:  # the last line, whose end is that of all
            self._hand_in(held.decode("utf-8", "replace"))
        self._have_done(self._end_in())

    def _hand_in(self, line: str) -> bool:
        return not line.strip() or self._have_done(self._in_send.send(line))

    def _write(self) -> None:
        while self._have_done(self._fetch()):
            data = memoryview(self._fetched.encode("utf-8", "backslashreplace"))
            try:
                while data:
                    data = data[os.write(self._target, data) :]
            except OSError:
                break
        self._have_done(self._end())

    async def _fetch(self) -> None:
        self._fetched = await self._out_receive.receive()

    async def _end_in(self) -> None:
        self.has_ended.set()
        await self._in_send.aclose()

    async def _end(self) -> None:
        self.is_over.set()

    def _have_done(self, what: Coroutine[Any, Any, None]) -> bool:
        """Have the loop do it, and wait. Whether it was there, and has."""
        try:
            asyncio.run_coroutine_threadsafe(what, self._loop).result()
        except Exception:  # the stream has ended, or the loop
            what.close()
            return False
        return True


def _move(fd: int, stead: int) -> int:
    """A copy of a descriptor that no child inherits; in its place something else."""
    copy = os.dup(fd)
    os.dup2(stead, fd)
    os.close(stead)
    return copy


def _read_chunk(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""


def _complain() -> None:
    sys.stderr.write(f"guardctl: a message of more than {MAX_MESSAGE:,} bytes was left out\n")
    sys.stderr.flush()
