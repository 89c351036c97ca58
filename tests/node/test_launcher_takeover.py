"""A supervisor does what its launcher was ordered and does not do: real processes, a loop that only listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guardrun.launcher.base.processes import TOKEN_VARIABLE
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.launcher_takeover import LauncherContext, LauncherTakeover, Outstanding
from guardrun.supervisor.wire import control_messages
from tests.support.waiting import wait_until

RANK = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
print("ready", flush=True)
time.sleep(600)
"""
LAUNCHER = """
import subprocess, sys, time
commands = [[sys.executable, "-c", sys.argv[1], how] for how in ("heeds", "deaf")]
ranks = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
assert all(rank.stdout.readline() for rank in ranks)
print(*(rank.pid for rank in ranks), flush=True)
time.sleep(600)
"""
"""Reaps nobody and says nothing, whatever happens."""


@dataclass
class Bed:
    """A launcher with two ranks, the second of which ignores SIGTERM."""

    launcher: subprocess.Popen[bytes]
    token: str
    pids: list[int]
    fed: list[ev.Event] = field(default_factory=list)
    sent: list[object] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    has_left: bool = False

    def stand_in(self, order: control_messages.Stop, age_s: float) -> LauncherTakeover:
        """For a launcher that was ordered that so long ago, and has not been heard since."""
        stat = read_stat(self.launcher.pid)
        assert stat is not None
        run = SimpleNamespace(launcher_pid=stat.pid, launcher_start=stat.start, token=self.token, node="n1")
        ranks = {n: ev.Rank(global_rank=n, local_rank=n, pid=pid, node="n1") for n, pid in enumerate(self.pids)}
        context = SimpleNamespace(
            run_file=run,
            ingest=SimpleNamespace(ranks=ranks, attempt=0),
            terminal=SimpleNamespace(print_line=lambda text, level: self.said.append(text)),
            feed=self.fed.append,
            send=self.sent.append,
            post=lambda call: call(),
            in_background=self._now,
        )
        stand_in = LauncherTakeover(cast(LauncherContext, context), self._leave)
        began_s = time.monotonic() - age_s
        stand_in.outstanding = Outstanding(began_s)
        stand_in.outstanding.ordered(order, 0, began_s)
        return stand_in

    @staticmethod
    def _now(work: Callable[[], Any], instead: Callable[[str], Any]) -> None:
        work()

    def _leave(self) -> None:
        self.has_left = True


@pytest.fixture
def bed() -> Iterator[Bed]:
    token = uuid.uuid4().hex
    command = [sys.executable, "-c", LAUNCHER, RANK]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, TOKEN_VARIABLE: token})
    assert launcher.stdout is not None
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    try:
        yield Bed(launcher, token, pids)
    finally:
        launcher.stdout.close()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # the launcher reaps nobody: it is still that one
        launcher.kill()
        launcher.wait()


@pytest.mark.parametrize(
    ("is_stopped", "age_s", "words"),
    [(True, 6.0, "is stopped (SIGSTOP, or Ctrl-Z)"), (False, 30.0, "does not answer")],
)
def test_ranks_are_asked_then_ended_and_the_node_is_out(bed: Bed, is_stopped: bool, age_s: float, words: str) -> None:
    if is_stopped:
        bed.launcher.send_signal(signal.SIGSTOP)
        wait_until(lambda: getattr(read_stat(bed.launcher.pid), "state", "") == "T", 10, "the launcher to stop")
    stand_in = bed.stand_in(control_messages.Stop(attempt=0, grace_s=0.5), age_s)
    stand_in.step(time.monotonic())
    wait_until(lambda: getattr(read_stat(bed.pids[0]), "state", "") == "Z", 10, "the rank that heeds SIGTERM to end")
    assert not bed.fed
    time.sleep(0.5)  # the grace
    stand_in.step(time.monotonic())
    left, stopped = bed.fed
    assert left == ev.NodeLeft(node="n1", why=f"its guardrun {words}, and did not obey", is_unfit=not is_stopped)
    assert stopped == ev.AttemptStopped(attempt=0, exitcodes={0: -15, 1: -9}, stopped_by_us=[0, 1])
    assert bed.has_left and bed.launcher.poll() is None
    assert bed.sent == [control_messages.Stop(attempt=0, grace_s=0.0)]
    assert bed.said == [f"guardrun {words}, and was ordered to stop its ranks: ending them without it"]
    stand_in.step(time.monotonic())
    assert len(bed.fed) == 2


def test_a_launcher_that_goes_on_in_time_does_it_itself(bed: Bed) -> None:
    bed.launcher.send_signal(signal.SIGSTOP)
    wait_until(lambda: getattr(read_stat(bed.launcher.pid), "state", "") == "T", 10, "the launcher to stop")
    stand_in = bed.stand_in(control_messages.Stop(attempt=0, grace_s=0.2), 6.0)
    stand_in.step(time.monotonic())
    stand_in.on_message(control_messages.LauncherHello(pid=1, world_size=2, attempt=0, alive=[], is_first=False))
    time.sleep(0.2)
    stand_in.step(time.monotonic())
    assert not bed.fed
    wait_until(lambda: getattr(read_stat(bed.pids[1]), "state", "") == "S", 10, "it to sleep on")
