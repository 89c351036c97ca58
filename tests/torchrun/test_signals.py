"""Signals to the launcher: which of them ranks hear, how long they may take, and that nothing is left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.torchrun.beside import RESTARTS, Beside, wait_for_probes

WAIT = '{"wait": ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]}'
DEAF = '{"wait": ["SIGTERM", "SIGINT"], "deaf": true}'


def heard(folder: Path) -> list[str]:
    return sorted(f"{path.name} {path.read_text()}" for path in folder.glob("heard-*"))


def end_both(beside: Beside, flags: list[str], wishes: str, signum: signal.Signals) -> tuple[list[int], list[float]]:
    """Signal both launchers once their ranks wait; their statuses, and seconds until they had ended."""
    runs = list(beside.start(["--nproc-per-node=2", RESTARTS, *flags, "probe.py", wishes]))
    for run in runs:
        wait_for_probes(run, world_size=2)
    began_s = time.monotonic()
    for run in runs:
        run.send(signum)
    statuses, took_s = [], []
    for run in runs:
        result = run.wait(60)
        statuses.append(result.returncode)
        took_s.append(time.monotonic() - began_s)
        left: list[Process] = run.alive()
        assert left == [] or run is runs[1], result
    return statuses, took_s


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_ranks_hear_what_the_launcher_got(beside: Beside, signum: signal.Signals, status: int) -> None:
    """torchrun ends with 1; guardrun as a shell has it, with 128 and the signal's number."""
    statuses, _ = end_both(beside, [], WAIT, signum)
    assert statuses == [status, 1]
    for starter in beside.starters.values():
        assert heard(starter.folder) == [f"heard-{rank}-0 {signum.name}" for rank in range(2)]


def test_signals_to_handle(beside: Beside) -> None:
    """Others than the usual ones, on demand."""
    statuses, _ = end_both(beside, ["--signals-to-handle=SIGTERM,SIGUSR2"], WAIT, signal.SIGUSR2)
    assert statuses == [128 + signal.SIGUSR2, 1]
    for starter in beside.starters.values():
        assert heard(starter.folder) == [f"heard-{rank}-0 SIGUSR2" for rank in range(2)]


def test_shutdown_timeout(beside: Beside) -> None:
    """A rank that hears and stays is ended after --shutdown-timeout."""
    statuses, took_s = end_both(beside, ["--shutdown-timeout=8"], DEAF, signal.SIGTERM)
    assert statuses == [143, 1]
    for starter in beside.starters.values():
        assert [line.split()[1] for line in heard(starter.folder)] == ["SIGTERM", "SIGTERM"]
    assert all(seconds >= 8 for seconds in took_s), took_s
    assert took_s[0] < 28, took_s  # torch's own is 30


def test_a_killed_launcher_leaves_no_rank(beside: Beside) -> None:
    """torchrun's ranks stay behind; guardrun's end, and so does its supervisor."""
    runs = list(beside.start(["--nproc-per-node=2", RESTARTS, "probe.py", WAIT]))
    for run in runs:
        wait_for_probes(run, world_size=2)
        run.send(signal.SIGKILL)
        run.process.wait(60)
    wait_until(lambda: runs[0].alive() == [], 20, "guardrun's ranks and supervisor to end")
    assert len(runs[1].find("probe.py")) == 2
