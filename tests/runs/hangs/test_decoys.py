"""What looks like a hang and is none: no incident of that kind, no restart, whatever the patience.

Each decoy lasts longer than an idle rank is given.
"""

from __future__ import annotations

import contextlib

import pytest

from guardrun.supervisor.engine.model.actions import TakeLook
from guardrun.supervisor.engine.model.events import LookTaken, NodeReport
from guardrun.supervisor.rundir.journal import read_lines
from tests.runs.runs import RESUME, EdgeRuns, finish, own_lines
from tests.support.guardrun_run import Finished

pytestmark = pytest.mark.real("py-spy")

HASTY = """
[hang]
floor_s = 1.5
sensitivity = "eager"
scale = 0.15
"""
LASTS_S = 6.0
"""Longer than floor and idle patience, shorter than the patience with a silent data source."""

SURE = HASTY.replace('"eager"', '"normal"').replace("0.15", "0.005")
"""What runs in the same few lines, or keeps the GIL, is given three seconds, as ten minutes by default."""
NATIVE = ["--seconds", "5.5"]
NEXT_LOOK_S = 3.0
"""The next look comes 1.5 s after an answer: on a busy machine, as late again."""

DECOYS = {
    "a slow first step of all ranks": ["--plan", "0:first@1:*"],
    "an evaluation of one rank": ["--plan", "0:eval@51:0"],
    "a save of one rank": ["--plan", "0:save@51:0"],
    "a compile in other processes": ["--plan", "0:compile@51:0"],
    "a pause of all ranks": ["--plan", "0:pause@51:*"],
    "a silent data loader's worker": ["--plan", "0:data_pause@51:1", "--loader"],
}
BY_DEFAULT = {
    "a package's slow forward on all ranks": ["--plan", "0:tune@51:*", *NATIVE],
    "a package's slow forward on one rank": ["--plan", "0:tune@51:1", *NATIVE],
    "a fit in native code": ["--plan", "0:fit@51:0", *NATIVE],
    "a search in native code that keeps the GIL": ["--plan", "0:search@51:0", *NATIVE],
}


@pytest.fixture(scope="module")
def decoys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """A run for each, side by side: a machine that is busy besides makes nothing a hang, either.

    Those that compute come after those that wait: beside eight ranks at work a look takes longer than a decoy lasts.
    """
    finished: dict[str, Finished] = {}
    for kinds, hang in ((DECOYS, HASTY), (BY_DEFAULT, SURE)):
        with contextlib.ExitStack() as stack:
            runs = {}
            for name, arguments in kinds.items():
                edge = stack.enter_context(contextlib.closing(EdgeRuns(tmp_path_factory.mktemp("decoy"))))
                more = ["--seconds", str(LASTS_S), "--steps", "80"]
                runs[name] = edge.start("train.py", *more, *arguments, config=RESUME + hang)
            finished |= {name: finish(run, timeout_s=200) for name, run in runs.items()}
    return finished


@pytest.mark.parametrize("name", [*DECOYS, *BY_DEFAULT])
def test_it_is_not_taken_for_a_hang(decoys: dict[str, Finished], name: str) -> None:
    finished = decoys[name]
    assert finished.incidents == []
    assert finished.returncode == 0
    assert finished.summary is not None
    assert finished.summary["restarts"] == 0
    assert finished.summary["last_step"] == 80
    assert own_lines(finished) == []


def test_they_were_looked_at_so_it_was_no_lack_of_suspicion(decoys: dict[str, Finished]) -> None:
    """Twice, as a verdict needs it; once where the first look was answered when the decoy was about to end."""
    looks = {name: looks_at(finished) for name, finished in decoys.items()}
    assert all(count >= 1 for count, _ in looks.values()), looks
    assert all(count >= 2 or left_s < NEXT_LOOK_S for count, left_s in looks.values()), looks


def looks_at(finished: Finished) -> tuple[int, float]:
    """How many looks were taken, and for how long nothing had moved yet when the first had been answered."""
    assert finished.run_dir is not None
    asked, answered_s, step = 0, None, 0
    for line in read_lines(finished.run_dir):
        if line is None:
            continue
        asked += sum(isinstance(action, TakeLook) for action in line.actions)
        if isinstance(line.event, LookTaken) and answered_s is None:
            answered_s = line.t
        elif isinstance(line.event, NodeReport):
            newest = max((report.step for report in line.event.ranks), default=0)
            if answered_s is not None and newest > step:
                return asked, line.t - answered_s
            step = max(step, newest)
    return asked, 0.0


def test_a_process_stopped_and_let_run_again_within_a_second_is_none(edge: EdgeRuns) -> None:
    """Proof waits for no floor, but it does wait for whoever limits the CPU that way."""
    finished = edge.run("plain.py", "--plan", "0:stop_briefly@60:1,0:stop_briefly@120:0", "--steps", "180")
    assert finished.incidents == []
    assert finished.returncode == 0
