"""A node's part in trying nodes together: it listens, reaches the others, and sums with them by torch.

What may take time is done by a thread of its own, which also starts torch's processes: they end with it. Whatever is
asked for is answered, with an error where it fails; nothing of it outlives the check.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.base.log import log
from guardrun.supervisor.engine.membership.reachability import ProbeResult
from guardrun.supervisor.fleet.checks.check_rounds import Answer, What
from guardrun.supervisor.fleet.checks.node_environment import read_facts
from guardrun.supervisor.fleet.checks.reachability_probe import Echo, Met, call
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.preflight.device_trial import Trial, ask_all, hear_all
from guardrun.supervisor.wire.listening_addresses import Listen

CALLERS = 32
MEET_S = 4.0
"""For all calls together: two rounds of those that get no answer."""
READY_S = 90.0
"""For torch to be imported, and devices to be taken hold of."""
SERVE_S = 10.0
ADD_S = 30.0
"""Above the process group's own timeout (launcher/device_trial/device.py)."""
JOIN_S = 2.0


class About(NamedTuple):
    """What a node says of itself."""

    node: str
    address: str
    """At which other nodes reach it: its ranks' store would have that name."""
    listen: Listen
    """Where those come that use it."""
    command: list[str]
    cwd: str
    wall_s: Callable[[], float]
    """As Facts has it."""


class NodeChecks:
    """Orders in, from the loop's thread; answers out, from another one."""

    def __init__(self, about: About, send_answer: Callable[[msg.CheckAnswer], object]) -> None:
        self._about = about
        self._send_answer = send_answer
        self._orders: queue.SimpleQueue[msg.CheckStep | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._worker: _Worker | None = None

    def obey(self, order: msg.CheckStep | msg.EndCheck) -> None:
        """Begin a step of a check; a first step ends what an earlier check left."""
        if isinstance(order, msg.EndCheck):
            self.end()
            return
        if isinstance(order.what, msg.Probe):
            self.end()
        if self._thread is None or self._worker is None:
            self._orders = queue.SimpleQueue()
            self._worker = _Worker(self._about, self._send_answer)
            work = (self._worker, self._orders)
            self._thread = threading.Thread(target=_serve, args=work, name="guardrun-check", daemon=True)
            self._thread.start()
        self._orders.put(order)

    def end(self) -> None:
        """Nothing is left: no process, no listener. Waits for no more than what hangs in a system call."""
        if self._thread is None or self._worker is None:
            return
        self._worker.kill()
        self._orders.put(None)
        self._thread.join(JOIN_S)
        self._thread, self._worker = None, None


def _serve(worker: _Worker, orders: queue.SimpleQueue[msg.CheckStep | None]) -> None:
    try:
        while (order := orders.get()) is not None:
            worker.work(order)
    finally:
        worker.close()


class _Worker:
    """Lives in its thread; `kill` alone is called from another one."""

    def __init__(self, about: About, send_answer: Callable[[msg.CheckAnswer], object]) -> None:
        self._about = about
        self._send_answer = send_answer
        self._token = b""
        self._echo: Echo | None = None
        self._trials: list[Trial] = []
        self._log: IO[bytes] | None = None
        self._is_over = False

    def work(self, order: msg.CheckStep) -> None:
        try:
            answer = self._do(order.what)
        except Exception as error:
            log.exception("check_failed", step=type(order.what).__name__)
            answer = _failed(order.what, f"{type(error).__name__}: {error}")
        if not self._is_over:
            self._send_answer(msg.CheckAnswer(check=order.check, step=order.step, answer=answer))

    def _do(self, what: What) -> Answer:
        if isinstance(what, msg.Probe):
            return self._probe(what)
        if isinstance(what, msg.Meet):
            return self._meet(what)
        return self._warm() if isinstance(what, msg.Warm) else self._add(what)

    def kill(self) -> None:
        """Have whatever is going on end soon."""
        self._is_over = True
        for trial in list(self._trials):
            trial.kill()

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()
            self._echo = None
        self._end_trials()

    def _end_trials(self) -> None:
        for trial in self._trials:
            trial.close()
        self._trials = []
        if self._log is not None:
            self._log.close()
            self._log = None

    def _probe(self, order: msg.Probe) -> msg.Probed:
        about = self._about
        self._token = order.token
        self._echo = Echo(about.node, order.token, order.keep_s, about.listen)
        facts = read_facts(about.command, Path(about.cwd), about.wall_s())
        return msg.Probed(address=about.address, port=self._echo.port, facts=facts)

    def _meet(self, order: msg.Meet) -> msg.Met:
        jobs = [lambda place=place: call(place.node, place.address, place.port, self._token) for place in order.places]
        results = run_bounded(jobs, workers=CALLERS, timeout_s=MEET_S)
        return msg.Met(
            meetings=[
                ProbeResult(source=self._about.node, target=place.node, took_s=met.took_s, error=met.error)
                for place, met in zip(order.places, map(_met, results), strict=True)
            ]
        )

    def _warm(self) -> msg.Warmed:
        """Have processes that live, and the port of the first one's store."""
        if not self._trials or any(trial.is_over for trial in self._trials):
            self._end_trials()
            self._start_trials()
            answers = hear_all(self._trials, "ready", READY_S)
            if errors := [answer.error for answer in answers.values() if answer.error]:
                return msg.Warmed(error=errors[0])
        first = self._trials[0]
        served = ask_all([first], "serve", SERVE_S)[first.device]
        if served.error:
            return msg.Warmed(error=served.error)
        return msg.Warmed(devices=len(self._trials), port=int(served.data["port"]))

    def _start_trials(self) -> None:
        from guardrun.supervisor.preflight.base.remark import Subject
        from guardrun.supervisor.preflight.full_preflight import (
            plan_trial,  # no run but one that wants this has a use for it
        )

        environ = dict(os.environ)
        plan = plan_trial(Subject(node=self._about.node, cwd=self._about.cwd, environ=environ))
        devices = plan.devices if plan.devices[0].startswith("cuda") else plan.devices[:1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as they live
        for rank, device in enumerate(devices):
            trial = Trial(device, rank=rank, ranks=len(devices), store="", environ=environ, log=self._log)
            self._trials.append(trial)
            if self._is_over:  # asked after it can be found: it is either killed by `kill`, or here
                raise RuntimeError("the check was ended")

    def _add(self, order: msg.Add) -> msg.Added:
        for place, trial in enumerate(self._trials):
            rank = order.first_rank + place
            trial.ask(f"add {order.address} {order.port} {order.prefix} {rank} {order.ranks}")
        answers = hear_all(self._trials, "an all-reduce", ADD_S)
        if errors := [answer.error for answer in answers.values() if answer.error]:
            return msg.Added(error=errors[0].splitlines()[0][:200])
        if wrong := sum(answer.data["wrong"] for answer in answers.values()):
            return msg.Added(error=f"{wrong} sums are wrong")
        return msg.Added(took_s=max(answer.data["took"] for answer in answers.values()))


def _met(result: Met | BaseException | None) -> Met:
    if isinstance(result, Met):
        return result
    return Met(error=f"no answer within {MEET_S:g} s" if result is None else str(result))


def _failed(
    what: msg.Probe | msg.Meet | msg.Warm | msg.Add, error: str
) -> msg.Probed | msg.Met | msg.Warmed | msg.Added:
    if isinstance(what, msg.Probe):
        return msg.Probed(address="", error=error)
    if isinstance(what, msg.Meet):
        return msg.Met(meetings=[])
    return msg.Warmed(error=error) if isinstance(what, msg.Warm) else msg.Added(error=error)


def wall_base_s(now_s: Callable[[], float]) -> float:
    """This host's wall clock at the engine's zero: hosts whose clocks agree agree in it."""
    return time.time() - now_s()
