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

import math
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.sensors.base.sensor import Sensor, WaitingSensor

# Sensor worker ------------------------------------------------------------------------------------------------------
# One sensor and the thread it lives in.
#
# A thread that is stuck in its sensor's call cannot be ended by anybody: it is a daemon, and abandoned. What belongs to
# the scheduler (`due_s`, `is_busy`, …) is only touched by it; the thread hands its answer over and waits to be asked.


MAX_SHARE = 0.001
"""Of a core, a sensor."""
LONGEST_S = 120.0
"""No period is made longer than this: judges go by several readouts."""
MAX_SAMPLES = 4096
MAX_HAPPENINGS = 512
STACK_BYTES = 512 * 1024
_MAX_TROUBLE = 400


class Worker:
    """Asks one sensor whenever it is told to."""

    def __init__(self, sensor: Sensor, report: Callable[[Worker, Readout], None]) -> None:
        self.sensor = sensor
        self.due_s = 0.0
        self.began_s = 0.0
        self.deadline_s = 0.0
        self.is_busy = False
        self.is_silent = False
        self.fd = -1
        """What the scheduler waits on."""
        self.is_armed = False
        self.arm_s = 0.0
        self.wanted_fd = -1
        """What the sensor wants to be waited on, as of its last answer."""
        self.cost_s = 0.0
        """CPU time of a call: the lesser of the last two, the first call often being dearer."""
        self._costs_s = (float("inf"), float("inf"))
        self._report = report
        self._asks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def period_s(self) -> float:
        """The sensor's, or longer where that would cost too much."""
        return max(self.sensor.period_s, min(self.cost_s / MAX_SHARE, LONGEST_S))

    def skip_to_after(self, now_s: float) -> None:
        """The next turn is whole periods after the one that is due now, and lies ahead."""
        missed = math.floor((now_s - self.due_s) / self.period_s)
        self.due_s += (missed + 1) * self.period_s

    def ask(self, now_s: float) -> None:
        """Have the sensor read. Raises RuntimeError where no thread can be started."""
        if self._thread is None:
            self._thread = _start(self._work, f"sense-{self.sensor.name}")
        self.is_busy = True
        self.began_s = now_s
        self.deadline_s = now_s + self.sensor.timeout_s
        self._asks.put(True)

    def stop(self) -> None:
        """Have the sensor closed and the thread end, as soon as it is not in a call."""
        if self._thread is not None:
            self._asks.put(False)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end; one that is stuck in its sensor's call is left behind."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while self._asks.get():
            began_s, spent_s = time.monotonic(), time.thread_time()
            readout = self._read(began_s)
            self.wanted_fd = self._fileno()
            self._costs_s = (self._costs_s[1], time.thread_time() - spent_s)
            self.cost_s = min(self._costs_s)
            self._report(self, msgspec.structs.replace(readout, at_s=began_s, took_s=time.monotonic() - began_s))
        try:
            self.sensor.close()
        except Exception:
            # Nobody is there any more to be told, and the others are closed all the same.
            return

    def _read(self, now_s: float) -> Readout:
        name = self.sensor.name
        try:
            readout = self.sensor.read(now_s)
        except Exception as error:
            trouble = f"it failed: {type(error).__name__}: {error}"[:_MAX_TROUBLE]
            return Readout(sensor=name, at_s=now_s, trouble=trouble)
        if not isinstance(readout, Readout):
            return Readout(sensor=name, at_s=now_s, trouble=f"it answered a {type(readout).__name__}")  # type: ignore[unreachable]
        return _bounded(msgspec.structs.replace(readout, sensor=name))

    def _fileno(self) -> int:
        if not isinstance(self.sensor, WaitingSensor):
            return -1
        try:
            return self.sensor.fileno()
        except Exception:
            return -1


def _bounded(readout: Readout) -> Readout:
    samples, happenings = readout.samples, readout.happenings
    if len(samples) <= MAX_SAMPLES and len(happenings) <= MAX_HAPPENINGS:
        return readout
    left_out = max(0, len(samples) - MAX_SAMPLES) + max(0, len(happenings) - MAX_HAPPENINGS)
    trouble = f"{readout.trouble}; " if readout.trouble else ""
    return msgspec.structs.replace(
        readout,
        samples=samples[:MAX_SAMPLES],
        happenings=happenings[-MAX_HAPPENINGS:],
        trouble=f"{trouble}{left_out} values more than are taken were left out",
    )


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread with a small stack: there is one a sensor, and none goes deep."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    usual = threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)
    return thread


# Sensor runner ------------------------------------------------------------------------------------------------------


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
