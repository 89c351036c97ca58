"""Work that may take for ever, on a slow disk or a dead mount, done by threads so that nobody waits for it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

NICE = 15


def be_nice() -> None:
    """Let all others go first: of this thread, and those that it makes."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


# Background writer --------------------------------------------------------------------------------------------------
# One thread that writes into the run directory, so that a file system that is slow or dead stops nothing else.
#
# Ranks hang on dead file systems, and the run directory often lies on the same one: whoever is to explain that must not
# hang with them. As long as the disk answers, `do` returns when the work is done: what has been acknowledged is
# written. Waiting is limited: to patience_s at once, and to one tenth of the time in the long run. When that is used
# up, work is queued without waiting, in order and bounded, until all of it is done.


Work = Callable[[], object]

PATIENCE_S = 2.0
END_S = 8.0
"""How long an end waits for a disk that is slow; below what the launcher gives its supervisor to end."""
LOOK_S = 0.25
SHARE = 0.1
"""Of the time that may be spent waiting: a loop that waits for a slow disk at each event falls behind the events."""
MOST = 10_000
"""Pieces of work that wait for a disk; what comes after them is dropped, and counted."""


class BackgroundWriter:
    """Does work in order, on a thread of its own."""

    def __init__(self, patience_s: float = PATIENCE_S, most: int = MOST) -> None:
        self._patience_s = patience_s
        self._credit_s, self._counted_s = patience_s, time.monotonic()
        """What may be spent waiting, and as of when."""
        self._queue: queue.Queue[Work | None] = queue.Queue(most)
        self._behind: threading.Event | None = None
        """Of the newest work that nobody has waited for."""
        self._busy_since_s: float | None = None
        self._seen: tuple[int, float] = (-1, 0.0)
        """How often the thread had waited for something, and since when that has been so."""
        self._is_closing = False
        self.dropped = 0
        # A daemon: a thread that the kernel does not let go must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="guardrun-writer", daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether the disk does not answer, rather than slowly: the thread has stood in one call for patience_s.

        Only whoever asks more than once can learn it.
        """
        since_s, now_s = self._busy_since_s, time.monotonic()
        if since_s is None or now_s - since_s < self._patience_s:
            return False
        waits = _read_waits(self._thread.native_id)
        if waits != self._seen[0] or self._seen[1] < since_s:
            self._seen = (waits, now_s)
        return now_s - self._seen[1] >= self._patience_s / 4

    def put(self, work: Work) -> bool:
        """Have work done some time; False where too much is waiting already. What it raises is lost."""
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def do(self, work: Work) -> bool:
        """Have work done, and wait for that; False where it has not been yet, or never will be."""
        done = threading.Event()

        def job() -> None:
            try:
                work()
            finally:
                done.set()

        is_behind = self._behind is not None and not self._behind.is_set()
        if not self.put(job):
            return False
        if is_behind or not self._wait(done):
            self._behind = done
            return False
        return True

    def _wait(self, done: threading.Event) -> bool:
        """For as long as there is credit."""
        began_s = time.monotonic()
        self._credit_s = min(self._patience_s, self._credit_s + SHARE * (began_s - self._counted_s))
        is_done = done.wait(self._credit_s)
        self._counted_s = time.monotonic()
        self._credit_s = max(0.0, self._credit_s - (self._counted_s - began_s))
        return is_done

    def close(self) -> bool:
        """End the thread once all is written; False where the disk does not answer, or too slowly."""
        by_s = time.monotonic() + END_S
        while not self._close_queue() or self._thread.is_alive():
            if self.is_stuck or time.monotonic() >= by_s:
                return False
            self._thread.join(LOOK_S * min(1.0, self._patience_s))
        return True

    def _close_queue(self) -> bool:
        """Have the thread end after all that is queued; False where there is no room for that yet."""
        if not self._is_closing:
            with suppress(queue.Full):
                self._queue.put_nowait(None)
                self._is_closing = True
        return self._is_closing

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._busy_since_s = time.monotonic()
            try:
                work()
            except Exception:  # The work's own trouble: it says so itself, or nobody wants to know.
                self.dropped += 1
            self._busy_since_s = None


def _read_waits(thread_id: int | None) -> int:
    """How often a thread of this process has waited for something, a disk among others; -1: not to be told."""
    try:
        status = Path(f"/proc/self/task/{thread_id}/status").read_text()
    except OSError:
        return -1
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0] or -1)


# Bounded calls ------------------------------------------------------------------------------------------------------
# Work that may never return (a dead mount, a process that holds its memory map), done so that nobody waits for ever.
#
# The threads are daemons: one that is stuck in the kernel is abandoned, and neither the supervisor's loop nor its end
# waits for it.


T = TypeVar("T")


def run_bounded(
    jobs: Sequence[Callable[[], T]],
    *,
    workers: int,
    timeout_s: float,
    delay_s: Callable[[int], float] = lambda native_id: 0.0,
) -> list[T | BaseException | None]:
    """Run jobs in at most `workers` threads; answer in the jobs' order, None where one didn't end in time.

    A job's exception is its answer. The threads have ended when this returns, unless time ran out. delay_s: for how
    long a thread was kept waiting for a core, which is added to the time that it has, up to as much again.
    """
    deadline = time.monotonic() + timeout_s
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | BaseException]] = queue.SimpleQueue()
    for index in range(len(jobs)):
        todo.put(index)

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, jobs[index]()))
            except Exception as error:
                done.put((index, error))

    threads = [threading.Thread(target=work, name="collect", daemon=True) for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    results: list[T | BaseException | None] = [None] * len(jobs)
    for _ in jobs:
        try:
            index, result = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            delays_s = [delay_s(thread.native_id) for thread in threads if thread.is_alive() and thread.native_id]
            late_s = min(max(delays_s, default=0.0), timeout_s)
            try:
                index, result = done.get(timeout=max(0.0, deadline + late_s - time.monotonic()))
            except queue.Empty:
                return results
        results[index] = result
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results
