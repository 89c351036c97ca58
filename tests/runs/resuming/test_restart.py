"""Between two attempts: nothing of the one is alive when the other starts; and an end to trying again."""

from __future__ import annotations

import re

from tests.runs.runs import RESUME, EdgeRuns, check_show, last_word, ranks_of

QUICK_STOP = RESUME + "[restart]\nstop_grace_s = 0.5\n[launcher]\nlinger_s = 0\n"


def test_nothing_of_an_attempt_is_alive_when_the_next_starts(edge: EdgeRuns) -> None:
    """Ranks and children that ignore SIGTERM, and orphans in sessions of their own."""
    arguments = ["--plan", "0:kill@15:1,1:raise@25:0", "--leave-children", "--ignore-sigterm"]
    finished = edge.run("plain.py", *arguments, config=QUICK_STOP)
    assert finished.returncode == 0
    told = re.findall(r"attempt (\d) rank \d: alive of before: (.*)", finished.stdout)
    assert sorted(told) == [(str(attempt), "[]") for attempt in (0, 0, 1, 1, 2, 2)]
    noted = [len(path.read_text().split()) for path in sorted(edge.folder.glob("pids-*"))]
    assert noted == [6, 6, 6]  # the processes were there


def test_a_rank_that_ignores_sigterm_costs_the_grace_and_no_more(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:kill@15:1", "--ignore-sigterm", config=QUICK_STOP)
    assert finished.returncode == 0
    assert finished.summary is not None
    assert 0.4 <= finished.summary["lost_s"]["stopping"] <= 8.0


def test_a_step_that_stops_the_run_every_time_ends_it_as_poison(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "*:kill@15:1")
    last = finished.incidents[-1]
    assert finished.returncode == 137
    assert [i["cause"] for i in finished.incidents] == ["killed"] * 3 + ["poison_step"]
    check_show("poison step", finished, until="^Rank  Does")
    assert [i["action"] for i in finished.incidents] == ["restart"] * 3 + ["give_up"]
    assert (last["kind"], last["step"], ranks_of(last)) == ("hang", 14, [1])
    assert last["evidence"]["own_cause"] == "killed"
    assert last["summary"].startswith("Step 14 has stopped the run 4 times in a row, the last time so: Rank 1 on ")
    assert last_word(finished).startswith("giving up: 3 restarts in a row got no further than step 14")


def test_stops_further_and_further_back_end_the_run_without_blaming_a_step(edge: EdgeRuns) -> None:
    plan = "0:kill@19:1,1:kill@18:0,2:kill@17:1,3:kill@16:0,4:kill@15:1"
    finished = edge.run("plain.py", "--plan", plan)
    assert finished.returncode == 137
    assert [i["cause"] for i in finished.incidents] == ["killed"] * 4
    assert last_word(finished).startswith("giving up: 3 restarts in a row got no further than step 18")


def test_max_no_progress_is_configuration(edge: EdgeRuns) -> None:
    config = RESUME + "[restart]\nmax_no_progress = 1\n"
    finished = edge.run("plain.py", "--plan", "*:kill@15:1", config=config)
    assert [i["action"] for i in finished.incidents] == ["restart", "give_up"]


def test_the_flag_for_restarts_wins_over_the_configuration(edge: EdgeRuns) -> None:
    config = RESUME + "[restart]\nmax_restarts = 5\n"
    plan = "0:kill@15:1,1:exit@25:0,2:kill@35:1"
    finished = edge.run("plain.py", "--plan", plan, flags=("--max-restarts=1",), config=config)
    assert finished.returncode == 3
    assert [i["action"] for i in finished.incidents] == ["restart", "give_up"]
    assert last_word(finished) == "giving up: the only restart is used up"


def test_a_rank_that_leaves_early_with_0_ends_nothing(edge: EdgeRuns) -> None:
    """Only those that fall are stopped for: one rank's work may be less than another's."""
    finished = edge.run("plain.py", "--plan", "0:exit_0@61:0", "--steps", "60")
    assert finished.returncode == 0
    assert finished.incidents == []
