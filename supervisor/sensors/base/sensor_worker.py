"""One sensor and the thread it lives in.

A thread that is stuck in its sensor's call cannot be ended by anybody: it is a daemon, and abandoned. What belongs to
the scheduler (`due_s`, `is_busy`, …) is only touched by it; the thread hands its answer over and waits to be asked.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable

import msgspec

from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.sensors.base.sensor import Sensor, WaitingSensor

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
