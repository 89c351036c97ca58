"""Before ranks are started again: the memory of those before them is given time to be freed, where NVML tells of it.

Once an attempt has failed and nothing of it is alive, a thread asks NVML (in a process of its own, as the sensors do)
who holds memory of the devices that the ranks had, while the engine still decides what comes next. An order to start
that comes meanwhile waits for the answer. Mostly that is there already, and the memory free: nothing is delayed then.
"""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Collection, Mapping

from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.engine.model.events import Device, MemoryWait
from guardrun.supervisor.health.gpu.memory_release import MemoryRelease, Owner, Verdict
from guardrun.supervisor.node.rank_devices import read_pid_namespace
from guardrun.supervisor.wire.control_messages import Finish, Start, Stop, ToLauncher

POLL_S = 0.25
FIRST_S = 8.0
"""NVML has to answer for the first time within so long: an order to start waits for no driver that is stuck."""


class StartGate:
    """Called by the loop's thread."""

    def __init__(
        self,
        node: str,
        post: Callable[[Callable[[], object]], None],
        send: Callable[[Start], None],
        limit_s: float,
        pid_namespace: int | None = None,
    ) -> None:
        """post has the loop's thread make a call; send passes a held order on. limit_s: [restart] gpu_memory_s."""
        self._node, self._post, self._send, self._limit_s = node, post, send, limit_s
        self._namespace = read_pid_namespace() if pid_namespace is None else pid_namespace
        self._wait: _Wait | None = None
        self._order: Start | None = None
        self._held_s = 0.0
        """Since when the order is held; 0: it is not."""

    def attempt_stopped(
        self, ranks: Mapping[int, int], devices: Collection[Device], survivors: Collection[int] = ()
    ) -> None:
        """Begin to ask, where ranks had devices. ranks: pid → global rank."""
        self.cancel()
        subjects = {device.subject: device.index for device in devices}
        if subjects and self._limit_s > 0:
            now_s = time.monotonic()
            release = MemoryRelease(
                subjects, ranks, now_s, self._limit_s, survivors=survivors, namespace=self._namespace
            )
            self._wait = _Wait(release, lambda wait: self._post(lambda: self._decided(wait)))

    def holds(self, order: ToLauncher) -> bool:
        """Whether an order that is about to be sent has to wait: it is sent by itself, later. Only starts ever do."""
        if isinstance(order, Finish) or (
            isinstance(order, Stop) and self._order and order.attempt >= self._order.attempt
        ):
            self.cancel()  # what is held is not wanted any more
        if not isinstance(order, Start) or self._wait is None or self._wait.verdict is not None:
            return False
        self._order = order
        self._held_s = self._held_s or time.monotonic()
        return True

    def take_outcome(self) -> list[MemoryWait]:
        """What the attempt that now runs was started into; told once."""
        wait, self._wait = self._wait, None
        held_s, self._held_s = self._held_s, 0.0
        if wait is not None:
            wait.end()
        if wait is None or wait.verdict is None or not (wait.verdict.holders or held_s):
            return []
        waited_s = round(wait.decided_s - held_s, 3) if held_s else 0.0
        asked_s = round(wait.decided_s - wait.began_s, 3)
        return [
            MemoryWait(
                node=self._node,
                waited_s=waited_s,
                why=wait.verdict.why,
                asked_s=asked_s,
                holders=list(wait.verdict.holders),
            )
        ]

    def cancel(self) -> None:
        """Nothing is to be started any more: what was held is not sent."""
        self._order, self._held_s = None, 0.0
        if self._wait is not None:
            self._wait.end()
            self._wait = None

    def _decided(self, wait: _Wait) -> None:
        if wait is not self._wait or wait.verdict is None:
            return  # of an attempt before: what is held now waits for its own
        order, self._order = self._order, None
        log.info("gpu_memory", why=wait.verdict.why, holders=len(wait.verdict.holders), is_held=order is not None)
        if order is not None:
            self._send(order)


class _Wait:
    """A thread that asks until it knows."""

    def __init__(self, release: MemoryRelease, decided: Callable[[_Wait], None]) -> None:
        self._release, self._report_end = release, decided
        self._is_ended = threading.Event()
        self.verdict: Verdict | None = None
        self.began_s = time.monotonic()
        self.decided_s = 0.0
        self._thread = threading.Thread(target=self._run, name="guardrun-gpu-memory", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """It asks no more; a call into the driver that does not return is not waited for."""
        self._is_ended.set()

    def _run(self) -> None:
        try:
            verdict = self._ask()
        except Exception:
            log.exception("gpu_memory_not_read")
            verdict = Verdict(True, "unknown")
        self.decided_s = time.monotonic()
        self.verdict = verdict
        if not self._is_ended.is_set():
            self._report_end(self)

    def _ask(self) -> Verdict:
        from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor  # only where there are devices
        from guardrun.supervisor.sensors.gpu.nvml_wire import MEMORY

        sensor = GpuSensor(period_s=POLL_S, patience_s=FIRST_S, init_patience_s=FIRST_S, tiers=(MEMORY,))
        try:
            while True:
                verdict = self._release.judge(sensor.read(time.monotonic()), find_owner, time.monotonic())
                if verdict.is_over or self._is_ended.wait(POLL_S):
                    return verdict
        finally:
            sensor.close()


def find_owner(pid: int) -> Owner | None:
    """Who a process is of; None where it has ended. One that /proc hides is somebody else's."""
    stat = read_stat(pid)
    if stat is not None:
        return None if stat.is_dead else Owner(_user_of(pid), stat.comm)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return Owner()


def _user_of(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
