"""Work that may never return (a dead mount, a process that holds its memory map), done so that nobody waits for ever.

The threads are daemons: one that is stuck in the kernel is abandoned, and neither the supervisor's loop nor its end
waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def run_bounded(jobs: Sequence[Callable[[], T]], *, workers: int, timeout_s: float) -> list[T | BaseException | None]:
    """Run jobs in at most `workers` threads; answer in the jobs' order, None where one didn't end in time.

    A job's exception is its answer. The threads have ended when this returns, unless time ran out.
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
            return results
        results[index] = result
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results
