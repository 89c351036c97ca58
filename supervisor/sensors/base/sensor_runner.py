"""The turns of all sensors: each in a thread of its own, timed, bounded, and none in another's way.

One scheduler thread waits for whatever comes next: a sensor that is due, a descriptor that a sensor waits on, an
answer, the end of the time that a call has. It never calls a sensor itself.

- Periods are kept without drift: the next turn counts from when the last was due, not from when it was done.
- A sensor that costs more than a small share of a core at its period gets a longer one (thousands of processes,
  hundreds of CPUs): the agent must not cost more on a big node than on a small one.
- A call that does not return in `timeout_s` is told once, as a readout that `is_silent`; the sensor is not called again
  before that call has returned, and then its late readout says that it is back.
- Time in which this process itself did not run (stopped, suspended, starved) is nobody's silence.
- Descriptors are armed for one event at a time, and not again before REST_S: one that is always ready costs little.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.base.sensor_worker import Worker

REST_S = 0.2
"""Between two reads that a descriptor asks for."""
LATE_S = 0.5
"""How much later than asked for a wake-up may come before it is said that this process did not run."""
JOIN_S = 2.0
"""close() gives idle sensors so long, all together, to close theirs."""


class Turn(NamedTuple):
    """How one sensor is doing."""

    name: str
    period_s: float
    """As it is kept: longer than the sensor's own where that would cost too much."""
    cost_s: float
    """CPU time of a call."""
    is_silent: bool


class Runner:
    """Runs sensors from start() to close(); deliver gets every readout, in the scheduler's thread.

    deliver should only put it somewhere (`Mailbox.put`): while it runs, no sensor gets its turn. What it raises is
    counted in `undelivered`, and goes no further.
    """

    def __init__(self, sensors: Iterable[Sensor], deliver: Callable[[Readout], None]) -> None:
        self._workers = [Worker(sensor, self._answered) for sensor in sensors]
        self._deliver = deliver
        self._answers: deque[tuple[Worker, Readout]] = deque()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closing = False
        self.undelivered = 0

    def start(self) -> None:
        """Begin; every sensor has its first turn at once."""
        self._epoll.register(self._wake, select.EPOLLIN)
        now_s = time.monotonic()
        for worker in self._workers:
            worker.due_s = now_s
        self._thread = threading.Thread(target=self._run, name="sense", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End: no readout comes after this. Never waits for a sensor that is stuck; its thread is abandoned."""
        if self._is_closing:
            return
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for worker in self._workers:
            worker.stop()
        deadline_s = time.monotonic() + JOIN_S
        for worker in self._workers:
            if not worker.is_silent:
                worker.join(max(0.0, deadline_s - time.monotonic()))
        with self._lock:
            os.close(self._wake)
            self._wake = -1
        self._epoll.close()

    def turns(self) -> list[Turn]:
        """How the sensors are doing, in their order."""
        return [Turn(w.sensor.name, w.period_s, w.cost_s, w.is_silent) for w in self._workers]

    # In a worker's thread --------------------------------------------------------------------------------

    def _answered(self, worker: Worker, readout: Readout) -> None:
        self._answers.append((worker, readout))
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # In the scheduler's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            now_s = time.monotonic()
            for worker in self._workers:
                self._look_after(worker, now_s)
            wake_s = min((self._next_s(worker) for worker in self._workers), default=now_s + 3600)
            ready = {fd for fd, _ in self._epoll.poll(max(0.0, wake_s - time.monotonic()))}
            woke_s = time.monotonic()
            if woke_s - wake_s > LATE_S:
                self._excuse(woke_s)
            if self._wake in ready:
                os.eventfd_read(self._wake)
            self._take_answers()
            for worker in self._workers:
                if worker.fd in ready:
                    worker.is_armed = False
                    if not worker.is_busy:
                        worker.arm_s = woke_s + REST_S
                        self._ask(worker, woke_s)

    def _look_after(self, worker: Worker, now_s: float) -> None:
        if worker.is_busy:
            if not worker.is_silent and now_s >= worker.deadline_s:
                worker.is_silent = True
                self._give(_silence(worker, now_s))
            return
        if now_s >= worker.due_s:
            worker.skip_to_after(now_s)
            self._ask(worker, now_s)
        elif worker.wanted_fd >= 0 and not worker.is_armed and now_s >= worker.arm_s:
            self._arm(worker)

    def _next_s(self, worker: Worker) -> float:
        """When the worker needs looking after, if nothing happens before."""
        if worker.is_busy:
            return worker.deadline_s if not worker.is_silent else worker.deadline_s + 3600
        is_resting = worker.wanted_fd >= 0 and not worker.is_armed
        return min(worker.due_s, worker.arm_s) if is_resting else worker.due_s

    def _ask(self, worker: Worker, now_s: float) -> None:
        try:
            worker.ask(now_s)
        except RuntimeError as error:
            # No more threads (a limit on pids): the next turn tries again.
            worker.is_busy = False
            self._give(Readout(sensor=worker.sensor.name, at_s=now_s, trouble=f"no thread for it: {error}"))

    def _arm(self, worker: Worker) -> None:
        """Wait on the worker's descriptor, for one event."""
        events = select.EPOLLIN | select.EPOLLONESHOT
        fd = worker.wanted_fd
        if fd != worker.fd:
            self._forget(worker)
        try:
            try:
                self._epoll.modify(fd, events)
            except FileNotFoundError:
                self._epoll.register(fd, events)
        except OSError:
            # Closed in between, or a file that cannot be waited on: its period is left.
            worker.wanted_fd = -1
            return
        worker.fd, worker.is_armed = fd, True

    def _forget(self, worker: Worker) -> None:
        if worker.fd >= 0 and not any(other.fd == worker.fd for other in self._workers if other is not worker):
            try:
                self._epoll.unregister(worker.fd)
            except OSError:
                pass  # Closing it has taken it out.
        worker.fd, worker.is_armed = -1, False

    def _take_answers(self) -> None:
        while self._answers:
            worker, readout = self._answers.popleft()
            worker.is_busy = worker.is_silent = False
            if worker.wanted_fd != worker.fd:
                self._forget(worker)
            self._give(readout)

    def _excuse(self, now_s: float) -> None:
        """This process did not run for a while, and neither did the calls of its sensors: their time begins anew."""
        for worker in self._workers:
            if worker.is_busy:
                worker.deadline_s = now_s + worker.sensor.timeout_s

    def _give(self, readout: Readout) -> None:
        try:
            self._deliver(readout)
        except Exception:
            self.undelivered += 1


def _silence(worker: Worker, now_s: float) -> Readout:
    doing = getattr(worker.sensor, "doing", "")
    trouble = f"its call has not returned within {worker.sensor.timeout_s:g} s"
    return Readout(
        sensor=worker.sensor.name,
        at_s=worker.began_s,
        took_s=now_s - worker.began_s,
        trouble=f"{trouble} ({doing})" if doing else trouble,
        is_silent=True,
    )
