"""Watching only: by configuration, and by a person's word in a live run. And telling somebody else."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, EdgeRuns, finish, only, own_lines, ranks_of
from tests.support.guardrun_run import GuardrunRun
from tests.support.processes import is_alive, kill_marked, marked
from tests.support.waiting import wait_until

OBSERVE = RESUME + "[policy]\nact = false\n"


def wait_for_incident(run: GuardrunRun, timeout_s: float = 30.0) -> None:
    wait_until(run.incidents, timeout_s, "an incident")


def test_a_crash_is_explained_and_nothing_is_restarted(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:kill@15:1", config=OBSERVE)
    incident = only(finished)
    assert finished.returncode == 137
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("killed", [1], "none")
    assert finished.summary is not None
    assert (finished.summary["outcome"], finished.summary["restarts"]) == ("failed", 0)
    assert finished.summary["reason"] == "[policy] act = false"


def test_a_hang_is_explained_and_nothing_is_touched(edge: EdgeRuns) -> None:
    run = edge.start("plain.py", "--plan", "0:stop@15:1", config=OBSERVE)
    wait_for_incident(run)
    incident = run.incidents()[0]
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("rank_stopped", [1], "none")
    pid = incident["culprits"][0]["pid"]
    time.sleep(2.0)  # what must not happen has no event to wait for
    assert is_alive(pid)
    assert len(run.incidents()) == 1
    os.kill(pid, signal.SIGCONT)
    finished = finish(run)
    assert finished.returncode == 0
    assert only(finished)["recovered"] is not None
    assert finished.summary is not None
    assert finished.summary["restarts"] == 0


def test_hold_keeps_hands_off_a_live_run_and_unhold_lets_it_be_mended(edge: EdgeRuns) -> None:
    """Long: a hang by the defaults, seen and not acted on for a while, and then the rest of the training."""
    run = edge.start("plain.py", "--when", "now:stop", "--steps", "800", "--step-s", "0.02", config=RESUME)
    run.wait_for_output("starts at step 0")
    wait_until(lambda: run.run_dir, 10, "the run directory")
    assert "held" in run.guardctl("hold", "latest").lower()
    (run.folder / "now").touch()
    wait_for_incident(run)
    incident = run.incidents()[0]
    assert (incident["cause"], incident["action"]) == ("rank_stopped", "none")
    time.sleep(2.0)  # what must not happen has no event to wait for
    assert is_alive(incident["culprits"][0]["pid"])
    assert json.loads(run.guardctl("status", "latest", "--json"))["held"] is True
    run.guardctl("unhold", "latest")
    finished = finish(run)
    assert finished.returncode == 0
    assert [i["action"] for i in finished.incidents][-1] == "restart"
    assert "attempt 1 rank 0: done" in finished.stdout


def notifier(folder: Path) -> str:
    """[notify] with a command that leaves the path it was given, waits for `go` (ten minutes at most), then says so."""
    code = (
        "import os, sys, time; open('told', 'a').write(sys.argv[-1] + chr(10)); "
        "end = time.monotonic() + 600\n"
        "while time.monotonic() < end and not os.path.exists('go'): time.sleep(0.05)\n"
        "open('sent', 'a').write(sys.argv[-1] + chr(10))"
    )
    script = folder / "notify.py"
    script.write_text(code)
    command = [sys.executable, "-S", str(script), "--to", "me"]
    return f"\n[notify]\ncommand = {json.dumps(command)}\n"


def test_the_notify_command_gets_each_incident_and_is_never_waited_for(edge: EdgeRuns) -> None:
    config = RESUME + notifier(edge.folder)
    run = edge.start("plain.py", "--plan", "0:kill@15:1,1:exit@25:0", config=config)
    finished = run.wait()
    try:
        assert finished.returncode == 0
        assert finished.took_s < 300
        file = edge.folder / "told"
        wait_until(lambda: file.exists() and file.read_text().count("\n") >= 2, 60, "two commands to begin")
        told = [Path(line) for line in file.read_text().splitlines()]
        assert [json.loads(path.read_text())["cause"] for path in told] == ["killed", "exit_code"]
        assert all(path.is_absolute() and path.name == "incident.json" for path in told)
    finally:
        kill_marked("TEST_RUN_MARK", run.mark)


def test_a_notify_command_gets_to_its_end_though_the_run_is_over_before_it(edge: EdgeRuns) -> None:
    """The incident that ends a run is the one that somebody must hear of."""
    config = RESUME + notifier(edge.folder)
    run = edge.start("plain.py", "--plan", "0:import@5:*", config=config)
    finished = run.wait()
    assert finished.returncode == 1
    left = [process.command for process in marked("TEST_RUN_MARK", run.mark)]
    assert len(left) == 1 and "notify.py" in left[0], left
    (edge.folder / "go").touch()
    wait_until((edge.folder / "sent").exists, 10, "the notification to be sent")
    wait_until(lambda: not run.alive(), 10, "the command to end")


@pytest.mark.parametrize("command", ['["no-such-program", "--now"]', '["/dev/null"]'])
def test_a_notify_command_that_cannot_be_run_is_said(edge: EdgeRuns, command: str) -> None:
    finished = edge.run("plain.py", "--plan", "0:kill@15:1", config=RESUME + f"\n[notify]\ncommand = {command}\n")
    assert finished.returncode == 0
    assert sum("[notify] command could not be run" in line for line in own_lines(finished)) == 1
