"""Ranks that refuse, or are ended, at each moment: an attempt is started as ever, and nothing is left of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cold

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("matrix")
    command = [sys.executable, str(Path(__file__).with_name("matrix.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Answers = json.loads(done.stdout)
    return found


def test_who_refuses_is_no_rank_and_the_other_is_one(answers: Answers) -> None:
    found = answers["ranks_that_refuse"]
    assert found["refused"] and found["is_itself"]
    assert found["why"] == ["PYTHONHASHSEED is not what it was"] and found["is_over"]


def test_who_trains_ends_and_does_not_begin_anew(answers: Answers) -> None:
    found = answers["ranks_that_refuse"]
    assert found["code"] == 1 and found["exit_words"] == "heavy reads HEAVY_SETTING, which is not what it was"


def test_who_does_not_answer_is_ended_before_anything_of_the_script_runs(answers: Answers) -> None:
    found = answers["ranks_that_are_silent"]
    assert found["refused"] and found["code"] == -signal.SIGKILL and not found["has_run"]
    assert found["is_second_cold"] and found["why"] == ["a process that waited can't be reached (Broken pipe)"]


def test_who_executes_itself_anew_begins_as_it_was_started(answers: Answers) -> None:
    found = answers["ranks_that_begin_anew"]
    new, plain = found["new"], found["plain"]
    assert found["codes"] == [0, 0] and found["refused"] == []
    assert found["passed"] and found["is_same"]
    # All that the script had changed before, and what the hooks take away, is as in the rank beside it.
    own = {"pid", "argv", "ended"}
    assert {key: new[key] for key in new.keys() - own} == {key: plain[key] for key in plain.keys() - own}
    assert new["path"] is None
    assert found["why"] == ["heavy reads HEAVY_SETTING, which is not what it was"]


def test_a_child_of_a_rank_never_becomes_one(answers: Answers) -> None:
    found = answers["ranks_that_begin_anew"]
    assert found["plain"]["ended"] == 1 and found["plain"]["setting"] is None
    assert found["exit_words"] == "heavy reads HEAVY_SETTING, which is not what it was"


def test_signals_are_those_of_the_launcher_at_the_start_of_the_attempt(answers: Answers) -> None:
    plain = answers["ranks_that_begin_anew"]["plain"]
    assert signal.SIGHUP in plain["ignored"] and signal.SIGUSR2 not in plain["ignored"] and plain["interrupt"]


def test_all_that_was_forked_is_known_before_others_are_ended_and_goes_with_the_memory(answers: Answers) -> None:
    assert answers["forks_are_known_before_a_sweep"] == {"waiting": 5, "unknown": [], "why": [True]}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("importing SIGKILL", "the warm process has ended"),
        ("waiting SIGKILL", "the warm process has ended"),
        ("waiting SIGSTOP", "it does not answer"),
        ("pending SIGSTOP", "it does not answer"),
    ],
)
def test_without_the_warm_process_ranks_are_started_as_ever(answers: Answers, case: str, why: str) -> None:
    assert answers[case] == {"is_warm": False, "why": [why]}


def test_one_that_is_stopped_while_it_imports_is_not_waited_for(answers: Answers) -> None:
    assert answers["importing SIGSTOP"] == {"is_warm": False, "why": []}


@pytest.mark.parametrize(("moment", "count"), [("importing", 1), ("waiting", 3), ("pending", 3), ("claimed", 3)])
def test_nothing_outlives_a_launcher_that_is_killed(answers: Answers, moment: str, count: int) -> None:
    assert answers[f"launcher {moment}"] == {"pids": count, "alive_before": count}
