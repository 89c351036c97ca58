"""Tell early, act when sure: a real training whose rank stands still, and what is seen of that from outside."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from guardrun.supervisor.report.elements.quantities import parse_iso_time
from tests.runs.runs import QUICK, RESUME, EdgeRuns, check_show, finish, only, own_lines, ranks_of
from tests.support import scenes
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

SOON = RESUME + "[hang]\nfloor_s = 2\ntell_s = 4\n"
"""Told soon; when it is acted on is guardrun's own default."""
TOLD = (
    r"stall: Rank 1 on \S+ has waited \d+ s in stand_until_told \(faults\.py:\d+\); rank 0 waits for it in "
    r"the backward pass\. guardrun acts in (\d+) s; guardctl restart acts now, guardctl hold never\."
)


def stalled(edge: EdgeRuns, *arguments: str) -> tuple[GuardrunRun, dict[str, Any]]:
    """A run whose rank 1 stands in a call, and its status once that has been told."""
    run = edge.start("train.py", "--plan", "0:stand@15:1", "--steps", "30", *arguments, config=SOON)
    run.wait_for_output("stall: ")
    status = json.loads(run.guardctl("status", "latest", "--json"))
    assert status["state"] == "stalled"
    return run, status["stall"]


def test_a_stall_is_told_and_what_ends_by_itself_is_no_incident(edge: EdgeRuns) -> None:
    """Long on a busy machine: a stall is told after 15 s of silence, and training goes on to its end."""
    run, stall = stalled(edge)
    told = re.search(TOLD, run.stderr)
    assert told is not None, run.stderr
    assert 200 <= float(told[1]) <= 300
    assert (stall["place"], [one["rank"] for one in stall["who"]]) == ("stand_until_told (faults.py)", [1])
    assert 0 < stall["acts_in_s"] <= 300
    printed = run.guardctl("status", "latest")
    assert "guardctl restart acts now" in printed
    scenes.check("stall that is told", "guardctl status", printed, edge.folder)
    os.close(os.open(edge.folder / "go", os.O_WRONLY))
    finished = finish(run)
    assert (finished.returncode, finished.incidents) == (0, [])
    assert finished.summary is not None
    assert (finished.summary["restarts"], len(finished.summary["attempts"])) == (0, 1)
    [noted] = finished.summary["stalls"]
    assert (noted["place"], [one["rank"] for one in noted["who"]]) == ("stand_until_told (faults.py)", [1])
    assert noted["seconds"] >= 4
    lines = [line for line in own_lines(finished) if "stall" in line]
    assert len(lines) == 2, lines
    assert re.fullmatch(
        r"stall over: Rank 1 on \S+ goes on, after \d+ s in stand_until_told \(faults\.py:\d+\)", lines[1]
    )


def test_guardctl_restart_acts_on_it_at_once(edge: EdgeRuns) -> None:
    """Long: it is told after 15 s of silence, and training goes on to its end in a second attempt."""
    run, _ = stalled(edge)
    assert json.loads(run.guardctl("restart", "latest", "--json")) == {"ok": True, "attempt": 0}
    finished = finish(run)
    incident = only(finished)
    assert finished.returncode == 0
    assert (incident["cause"], ranks_of(incident), incident["action"]) == ("rank_blocked", [1], "restart")
    assert incident["resumed_from"]["step"] == 10
    assert incident["detected"] < incident["acted"] < incident["recovered"]
    assert finished.summary is not None
    assert (finished.summary["restarts"], finished.summary["stalls"]) == (0, [])
    assert "attempt 1 rank 0: done" in finished.stdout


def test_it_restarts_a_run_that_is_well_too(edge: EdgeRuns) -> None:
    """Long on a busy machine: a stall is told after 15 s of silence, and training goes on to its end."""
    arguments = ["--steps", "100000", "--step-s", "0.1", "--end", "end"]
    run = edge.start("plain.py", *arguments, config=RESUME)
    wait_until((edge.folder / "out" / "ckpt_10.safetensors").exists, 60, "a checkpoint")
    assert "asked" in run.guardctl("restart")
    run.wait_for_output("attempt 1 rank 0: starts at step")
    (edge.folder / "end").touch()
    finished = finish(run)
    assert (finished.returncode, finished.incidents) == (0, [])
    assert finished.summary is not None
    assert [one["outcome"] for one in finished.summary["attempts"]] == ["restarted", "finished"]
    assert finished.summary["attempts"][1]["resumed_from"]["step"] >= 10


@pytest.mark.cold
@pytest.mark.timeout(400)
def test_with_defaults_a_deadlock_is_acted_on_once_it_is_proven(edge: EdgeRuns) -> None:
    """Long: patience is waited for here. Native frames are asked for, which a forked interpreter does not show whole.

    Quiet machines need 15 to 19 s, busy ones a minute: native frames take long. Without a proof, patience takes 300 s.
    """
    # The attempt after it is over at once: the trainings above are gone on with.
    finished = edge.run("train.py", "--plan", "0:deadlock@15:1,1:over@0:*", "--steps", "30", timeout_s=280)
    incident = only(finished)
    assert finished.returncode == 0
    assert (incident["cause"], ranks_of(incident), incident["step"]) == ("rank_blocked", [1], 14)
    assert "take_two_locks (faults.py:" in incident["summary"]
    assert "and no thread is left that could release what it waits for" in incident["summary"]
    assert 14 <= parse_iso_time(incident["acted"]) - parse_iso_time(incident["onset"]) < 300
    assert incident["resumed_from"]["step"] == 10
    check_show("deadlock", finished, until="^Rank 0$")


def test_a_thread_that_checks_the_others_health_is_no_training(edge: EdgeRuns) -> None:
    """Its collectives go on, on a group of their own, while the ranks stand still."""
    finished = edge.run("train.py", "--plan", "0:block@15:1", "--steps", "30", "--health", config=RESUME + QUICK)
    assert finished.returncode == 0
    incident = only(finished)
    assert (incident["cause"], ranks_of(incident), incident["step"]) == ("rank_blocked", [1], 14)
    assert "rank 0 waits for it in the backward pass" in incident["summary"]
