"""`guardctl top` on terminals, beside a real job of two ranks that trains, hangs, loses its supervisor and ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.diagnose.conftest import Commanded, start_commanded
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

WATCHED = '[policy]\nact = false\n[hang]\nfloor_s = 3\nsensitivity = "eager"\nscale = 0.5\n'
GUARDCTL = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl"]


def start_top(job: Commanded, columns: int, rows: int) -> Terminal:
    environment = {**os.environ, "TERM": "xterm-16color", "PYTHONUTF8": "1"}
    for name in [name for name in environment if name.startswith("GUARDRUN_")]:
        del environment[name]
    return Terminal([*GUARDCTL, "top"], job.folder, environment, columns, rows)


def test_a_job_that_trains_hangs_and_is_over(tmp_path: Path) -> None:
    """Long: one job in each of its states."""
    starter, job = start_commanded(tmp_path, None, config=WATCHED)
    try:
        with start_top(job, 80, 24) as top:
            trains(top)
            hangs(job, top)
            loses_its_supervisor(job, top)
            job.run.send(signal.SIGINT)
            top.wait_for("ENDED", "interrupted")
            top.press("X")
            top.wait_for("the run is over")
            top.press("q")
            assert top.wait_for_end() == 0
        with start_top(job, 150, 45) as top:
            over(top)
    finally:
        starter.close()


def trains(top: Terminal) -> None:
    shown = top.wait_for(" now", "Ranks 2", "attempt 0 started: 2 ranks")
    assert "on " in shown.splitlines()[1] and shown.splitlines()[-1].endswith("? help  q quit")
    wait_until(lambda: ranks_of(top) == ["0", "1"], 60.0, "a line for each rank")
    top.press("s")
    top.wait_for("commanded.py")
    top.press("q")
    top.wait_for("Goodput")


def ranks_of(top: Terminal) -> list[str]:
    return [line.split()[0] for line in top.lines() if line.lstrip().startswith(("0  ", "1  "))]


def hangs(job: Commanded, top: Terminal) -> None:
    job.suffer("block")
    # Told as a stall, and after some seconds, since nothing is done about it here, as an incident.
    shown = top.wait_for("fetch_vocabulary_update", "holds the run up", timeout_s=120.0)
    [row] = [line for line in shown.splitlines() if "holds the run up" in line]
    assert row.split()[0] == "1"
    top.resize(150, 30)
    # Beside each other, where there is room.
    wait_until(lambda: are_beside(top), 30.0, "two columns")
    top.resize(80, 24)
    wait_until(lambda: not are_beside(top), 30.0, "one column")
    top.wait_for("holds the run up", "q quit")


def are_beside(top: Terminal) -> bool:
    return any("── Ranks" in line and "── Incidents" in line for line in top.lines())


def loses_its_supervisor(job: Commanded, top: Terminal) -> None:
    """The launcher starts another; top, which asks whoever is there, goes on."""
    [before] = job.run.supervisors()
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: [one for one in job.run.supervisors() if one.pid != before.pid], 60.0, "another supervisor")
    top.wait_for(" now", "the supervisor was started again", "Ranks 2", timeout_s=120.0)


def over(top: Terminal) -> None:
    shown = top.wait_for("ENDED", "interrupted", "Ranks 2", "the supervisor was started again")
    assert "from its folder: the run is over" in shown and "hold" not in shown.splitlines()[-1]
    assert all(len(line) == 150 for line in top.lines())
    top.press("l")
    top.wait_for("Log (UTC)", "the run began")
    top.press("\x03")
    assert top.wait_for_end() == 0
    assert b"\x1b[?1049l" in top.written
