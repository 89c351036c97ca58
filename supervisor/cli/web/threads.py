"""Work that may wait for a disk or a supervisor, in threads of which there are only so many at once."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

MAX_WAITING = 256
AGAIN_S = 5.0
"""After work that could not be begun."""


class Threads:
    """Runs functions in threads that nobody waits for at the end: a dead file system must not hold that up."""

    def __init__(self, most: int) -> None:
        self._gate = asyncio.Semaphore(most)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """What work answers, or raises; OSError where too much waits already.

        Whoever waits may be cancelled: the thread goes on, and counts as long as it does.
        """
        if len(self._tasks) >= MAX_WAITING:
            raise OSError(errno.EBUSY, "too much is being waited for: a file system may not answer")
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to want to know

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._gate:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[T] = loop.create_future()

            def body() -> None:
                try:
                    answer = work()
                except BaseException as error:
                    hand(found.set_exception, error)
                else:
                    hand(found.set_result, answer)

            def hand(to: Callable[[Any], None], what: object) -> None:
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(lambda: None if found.done() else to(what))

            threading.Thread(target=body, name="web", daemon=True).start()
            return await found


class Latest:
    """The newest that some work has answered; the work is done again when somebody asks and it is due."""

    def __init__(self, threads: Threads, work: Callable[[], tuple[bytes, float]], clock: Callable[[], float]) -> None:
        """work: answers a document, and after how many seconds it is due again. It raises nothing."""
        self._threads, self._work, self._clock = threads, work, clock
        self._task: asyncio.Task[None] | None = None
        self._next_s = 0.0
        self.document: bytes | None = None
        self.asked_s = clock()
        """When somebody last wanted it."""

    async def ask(self, wait_s: float, known_wait_s: float) -> bytes | None:
        """The newest, within wait_s; where there is one already, within known_wait_s. None: nothing yet."""
        self.asked_s = self._clock()
        if (self._task is None or self._task.done()) and self.asked_s >= self._next_s:
            self._task = asyncio.create_task(self._do())
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=wait_s if self.document is None else known_wait_s)
        return self.document

    def hurry(self) -> None:
        """It is due now: something has been changed."""
        self._next_s = 0.0

    async def _do(self) -> None:
        try:
            document, pause_s = await self._threads.run(self._work)
        except OSError:
            self._next_s = self._clock() + AGAIN_S
            return
        self.document, self._next_s = document, self._clock() + pause_s
