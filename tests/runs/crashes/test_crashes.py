"""Ranks that fall: each way to fall told by its name, blamed on the right rank, and restarted from where it helps."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.runs.runs import RESUME, EdgeRuns, check_show, last_word, only, ordered_lines, own_lines, ranks_of
from tests.support.guardrun_run import Finished
from tests.support.real import find_program


class Case(NamedTuple):
    """One attempt of the run that suffers every fault in turn."""

    fault: str
    rank: int
    cause: str
    words: str
    """What the sentence says, as a regular expression."""


CASES = [
    Case("raise", 1, "exception", r"raised ValueError: bad sample 17 in load_sample \(faults\.py:\d+\)"),
    Case("segv", 0, "segfault", r"was ended by signal 11 \(SIGSEGV\) in <lambda> \(faults\.py:\d+\)"),
    Case("abort", 1, "abort", r"was ended by signal 6 \(SIGABRT\) in suffer \(faults\.py:\d+\)"),
    Case(
        "free",
        0,
        "abort",
        r"was ended by signal 6 \(SIGABRT\) in free_the_middle \(faults\.py:\d+\): free\(\): invalid pointer",
    ),
    Case("bus", 0, "bus_error", r"was ended by signal 7 \(SIGBUS\) in touch_past_end \(faults\.py:\d+\)"),
    Case("kill", 1, "killed", r"was ended by signal 9 \(SIGKILL\)"),
    Case("exit", 0, "exit_code", r"exited with code 3"),
    Case("term", 0, "killed", r"was ended by signal 15 \(SIGTERM\)"),
]


@pytest.fixture(scope="module")
def every_crash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """One run, a fault in each attempt: at step 15 in the first, at 25 in the next, …"""
    plan = ",".join(f"{n}:{case.fault}@{10 * n + 15}:{case.rank}" for n, case in enumerate(CASES))
    with contextlib.closing(EdgeRuns(tmp_path_factory.mktemp("crashes"))) as runs:
        yield runs.run("plain.py", "--plan", plan, "--steps", "110")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.fault for case in CASES])
def test_each_way_to_fall_has_its_name_its_culprit_and_its_sentence(every_crash: Finished, number: int) -> None:
    case, incident = CASES[number], every_crash.incidents[number]
    assert (incident["kind"], incident["cause"]) == ("crash", case.cause)
    assert ranks_of(incident) == [case.rank]
    assert incident["attempt"] == number
    assert incident["step"] == 10 * number + 14
    assert incident["confidence"] >= 0.9
    assert re.match(rf"Rank {case.rank} on \S+ {case.words} at step {incident['step']}\.$", incident["summary"])
    assert incident["action"] == "restart"
    assert incident["resumed_from"]["step"] == 10 * number + 10
    assert incident["recovered"] is not None
    assert incident["advice"]


TABLE = "^Rank  Does"


@pytest.mark.parametrize(("fault", "scene"), [("raise", "an exception"), ("kill", "dead rank")])
def test_a_person_who_asks_is_shown_what_the_page_has(every_crash: Finished, fault: str, scene: str) -> None:
    check_show(
        scene, every_crash, every_crash.incidents[[case.fault for case in CASES].index(fault)]["id"], until=TABLE
    )


def test_a_run_that_falls_again_and_again_still_ends_well(every_crash: Finished) -> None:
    assert every_crash.returncode == 0
    assert every_crash.summary is not None
    assert every_crash.summary["outcome"] == "finished"
    assert every_crash.summary["last_step"] == 110
    assert [a["outcome"] for a in every_crash.summary["attempts"]] == [c.cause for c in CASES] + ["finished"]
    assert every_crash.summary["restarts"] == len(CASES)


def test_an_exception_s_incident_holds_the_traceback_with_no_decorator_in_the_script(every_crash: Finished) -> None:
    traceback = every_crash.incidents[0]["evidence"]["traceback"]
    assert "in load_sample" in traceback and "ValueError: bad sample 17" in traceback


def test_the_terminal_says_what_who_why_and_what_next_in_few_lines(every_crash: Finished) -> None:
    lines = own_lines(every_crash)
    assert len(lines) <= 4 * len(CASES) + 1, lines
    pages = [Path(line.removeprefix("report: ")) for line in lines if line.startswith("report: ")]
    assert pages[0].exists()
    first = ordered_lines(every_crash)
    assert first[0].startswith("incident 001: Rank 1 on ")
    assert re.match(r"starting attempt 1: resuming from .*/out/ckpt_10\.safetensors \(step 10\)$", first[1])


def test_guardctl_replay_reaches_the_same_decisions(every_crash: Finished) -> None:
    guardctl = find_program("guardctl")
    assert guardctl is not None
    command = [guardctl, "replay", str(every_crash.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"\d+ events replayed, \d+ decisions reached again", done.stdout)


@pytest.mark.parametrize(
    ("fault", "status"), [("kill", 137), ("exit", 3), ("raise", 1)], ids=["signal", "code", "exception"]
)
def test_the_exit_status_is_the_failing_rank_s_when_no_restart_is_left(edge: EdgeRuns, fault: str, status: int) -> None:
    finished = edge.run("plain.py", "--plan", f"*:{fault}@15:1", flags=("--max-restarts=0",))
    assert finished.returncode == status
    assert only(finished)["action"] == "give_up"
    assert finished.summary is not None
    assert finished.summary["outcome"] == "gave_up"
    assert finished.summary["reason"] == "no restart is allowed (max_restarts is 0)"
    assert last_word(finished) == "giving up: no restart is allowed (max_restarts is 0)"


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        ("import", "import_error", "ModuleNotFoundError: No module named 'no_such_tokenizer'"),
        ("syntax", "exception", "SyntaxError: "),
    ],
)
def test_what_would_only_happen_again_is_not_retried(edge: EdgeRuns, fault: str, cause: str, words: str) -> None:
    finished = edge.run("plain.py", "--plan", f"*:{fault}@3:*")
    incident = only(finished)
    assert finished.returncode == 1
    assert incident["cause"] == cause
    assert words in incident["summary"]
    assert incident["action"] == "give_up"
    assert last_word(finished) == "giving up: it would only happen again"


@pytest.mark.parametrize(
    ("fault", "cause", "words", "why"),
    [
        (
            "sys_exit",
            "exit_code",
            r"exited with code 1: no such data set, in give_up \(faults\.py:\d+\)",
            "has ended itself",
        ),
        ("interrupt", "exception", r"raised KeyboardInterrupt in interrupt \(faults\.py:\d+\)", "was interrupted"),
    ],
)
def test_what_the_script_means_is_not_retried(edge: EdgeRuns, fault: str, cause: str, words: str, why: str) -> None:
    finished = edge.run("plain.py", "--plan", f"*:{fault}@15:1")
    incident = only(finished)
    assert (incident["cause"], incident["action"], ranks_of(incident)) == (cause, "give_up", [1])
    assert re.search(words, incident["summary"]), incident["summary"]
    assert finished.returncode == (1 if fault == "sys_exit" else 130)
    assert last_word(finished) == f"giving up: the script {why}"


def test_nobody_who_has_closed_the_scripts_output_has_it_started_again(edge: EdgeRuns) -> None:
    """As `guardrun … | head` does."""
    finished = edge.run("plain.py", "--plan", "*:broken_pipe@15:1")
    assert (finished.returncode, only(finished)["action"]) == (1, "give_up")
    assert last_word(finished) == "giving up: nobody reads its output any more"


def test_the_same_exception_at_the_same_step_is_not_retried_a_second_time(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "*:raise@15:1")
    assert finished.returncode == 1
    assert [(i["cause"], i["action"]) for i in finished.incidents] == [
        ("exception", "restart"),
        ("exception", "give_up"),
    ]
    assert last_word(finished) == "giving up: the same error at the same step twice"


def test_the_same_exception_further_on_is_retried(edge: EdgeRuns) -> None:
    finished = edge.run("plain.py", "--plan", "0:raise@15:1,1:raise@25:1")
    assert finished.returncode == 0
    assert [i["action"] for i in finished.incidents] == ["restart", "restart"]


def test_a_rank_that_only_lost_its_peer_is_not_to_blame_though_it_raised_first(edge: EdgeRuns) -> None:
    """Rank 1 hangs up before its own exception gets out: rank 0 raises "Connection closed by peer" because of it."""
    finished = edge.run("train.py", "--plan", "0:leave@15:1", "--steps", "30")
    incident = only(finished)
    assert finished.returncode == 0
    assert incident["cause"] == "exception"
    assert ranks_of(incident) == [1]
    assert "raised KeyError: 'sample 99' in leave_and_fail (train.py:" in incident["summary"]
    lost = {e["rank"]: e["lost_a_peer"] for e in incident["evidence"]["exits"]}
    assert lost.get(1) is False and lost.get(0, True) is True


@pytest.mark.real("mount")
def test_a_full_disk_is_told_from_other_failed_saves(edge: EdgeRuns, small_tmpfs: Path) -> None:
    finished = edge.run("train.py", "--out", str(small_tmpfs), "--steps", "30", flags=("--max-restarts=0",))
    incident = only(finished)
    assert (incident["cause"], ranks_of(incident)) == ("disk_full", [0])
    assert incident["step"] == 10
    assert "in save (train.py:" in incident["summary"]
    assert min(incident["evidence"]["disk_free_bytes"].values()) < 1 << 20
    assert "Free space" in incident["advice"]


@pytest.mark.real("cgroup")
def test_the_kernel_s_oom_killer_is_told_from_a_plain_kill(edge: EdgeRuns, memory_cgroup: Path) -> None:
    guardrun = find_program("guardrun")
    assert guardrun is not None
    enter = f'echo $$ > {memory_cgroup}/cgroup.procs && exec {guardrun} "$@"'
    finished = edge.run(
        "plain.py", "--plan", "0:oom@15:1", config=RESUME, program=["sh", "-c", enter, "sh"]
    )  # fmt: skip
    incident = only(finished)
    assert finished.returncode == 0
    assert (incident["cause"], ranks_of(incident)) == ("host_oom", [1])
    assert "was killed by the kernel because memory ran out" in incident["summary"]
    assert incident["evidence"]["oom_kills"] >= 1
