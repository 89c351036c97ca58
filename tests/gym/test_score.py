"""What the gym makes of what it saw: pure."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.gym import docs
from benchmarks.gym.case import Decoy, Doubt, Fault, Workload
from benchmarks.gym.decoys import DECOYS
from benchmarks.gym.emu.faults import EMU_FAULTS
from benchmarks.gym.faults import FAULTS
from benchmarks.gym.launchers import BY_NAME, with_heartbeats
from benchmarks.gym.observation import (
    Entry,
    Observation,
    Told,
    acted_at,
    find_line,
    names_line,
    read_entries,
    read_times,
    told_by_incident,
)
from benchmarks.gym.patience import Patience, played_at
from benchmarks.gym.play import MARKED, SCRIPTS, told_by_output
from benchmarks.gym.results import Header, Results
from benchmarks.gym.score import score_decoy, score_fault
from benchmarks.gym.scripts import planted
from benchmarks.gym.suite import CASES, choose_turns, patience_of
from benchmarks.gym.summary import as_markdown, score_all
from benchmarks.machine import describe

DRILL = played_at("normal", 0.1)
SLEEP = Fault("sleep", Workload.DDP, "a request", causes=("rank_blocked",))
KILLED = Fault("killed", Workload.DDP, "SIGKILL", kind="crash", causes=("killed",), doubt=Doubt.CRASH, has_line=False)
PAUSE = Decoy("idle_pause", Workload.DDP, "a pause")


def observation(case: str = "sleep", launcher: str = "guardrun", **more: Any) -> Observation:
    base = {"case": case, "launcher": launcher, "repeat": 0, "seed": 1, "step": 40, "date": "", "cap_s": 60.0}
    if launcher == "guardrun":
        base["patience"] = DRILL
    return msgspec.convert({**base, "returncode": 0, "planted_at": 100.0, **more}, Observation)


def told(**more: Any) -> Told:
    base = {
        "at": 114.5,
        "acted_at": 131.0,
        "kind": "hang",
        "cause": "rank_blocked",
        "culprits": [1],
        "names_line": True,
    }
    return msgspec.convert({**base, **more}, Told)


FOUND: dict[str, Any] = {
    "last_progress_at": 99.0, "steps_before": 40, "resumed_step": 30, "restarted_at": 131.5, "recovered_at": 134.0,
    "attempts": 2,
}  # fmt: skip


def test_a_perfect_verdict_falls_short_of_nothing() -> None:
    score = score_fault(SLEEP, observation(told=[told()], **FOUND))
    assert score.misses(SLEEP, DRILL) == []
    assert (score.verdict_s, score.acted_s) == (15.5, 32.0)
    assert (score.restart_s, score.recover_s, score.steps_lost) == (0.5, 35.0, 10)
    in_time = score_fault(SLEEP, observation(told=[told()], **{**FOUND, "resumed_step": 41}))
    assert in_time.steps_lost == 0, "the faulted step was saved"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cause": "rank_spinning"}, "cause rank_spinning"),
        ({"kind": "crash"}, "cause rank_blocked"),
        ({"culprits": [0, 1]}, "culprits [0, 1]"),
        ({"culprits": []}, "culprits []"),
        ({"names_line": False}, "line not named"),
        ({"at": 120.0}, "told later than 20 s"),
        ({"acted_at": 145.0}, "acted on later than 45 s"),
        ({"acted_at": 126.0}, "acted on before its 30 s were over"),
        ({"acted_at": None}, "not acted on"),
    ],
)
def test_each_shortcoming_is_told(change: dict[str, Any], words: str) -> None:
    assert score_fault(SLEEP, observation(told=[told(**change)], **FOUND)).misses(SLEEP, DRILL) == [words]


def test_other_launchers_have_no_times_of_guardrun_s_to_keep() -> None:
    seen = observation(launcher="ft_launcher", told=[told(at=190.0, acted_at=None)], **FOUND)
    score = score_fault(SLEEP, seen)
    assert (score.verdict_s, score.acted_s) == (91.0, None)
    assert score.misses(SLEEP, seen.patience) == []


def test_what_ends_by_itself_is_not_to_be_acted_on() -> None:
    fault = Fault("gc", Workload.DDP, "", causes=("gc_pause",), doubt=Doubt.PASSING, ends_by_itself=True)
    said = told(at=104.0, acted_at=None, cause="gc_pause")
    assert score_fault(fault, observation("gc", told=[said])).misses(fault, DRILL) == []
    said = told(at=104.0, acted_at=104.0, cause="gc_pause")
    assert score_fault(fault, observation("gc", told=[said])).misses(fault, DRILL) == ["acted on"]


def test_what_is_not_found_stays_in_the_table() -> None:
    seen = observation(launcher="torchrun", returncode=None, last_progress_at=99.0, steps_before=40)
    score = score_fault(SLEEP, seen)
    assert not score.found
    assert score.recovered is False
    played, decoys = score_all([SLEEP], [], [seen])
    table = as_markdown(played, decoys, ["guardrun", "torchrun"])
    assert "| faults found | – | 0 of 1 |" in table
    assert "not within 60 s" in table


def test_a_restart_that_left_something_or_never_got_on_is_told() -> None:
    seen = observation(told=[told()], **{**FOUND, "recovered_at": None}, left=["process 7"])
    assert score_fault(SLEEP, seen).misses(SLEEP, DRILL) == ["not recovered", "1 left running"]


def test_a_crash_counts_from_the_rank_s_end() -> None:
    seen = observation(
        "killed", told=[told(at=100.5, acted_at=100.5, kind="crash", cause="killed", names_line=False)], **FOUND
    )
    assert score_fault(KILLED, seen).verdict_s == 0.5
    seen.ended_at = 100.25
    assert score_fault(KILLED, seen).verdict_s == 0.25
    assert score_fault(KILLED, seen).recover_s == 34.0
    assert score_fault(KILLED, seen).acted_s == 0.25
    assert score_fault(KILLED, seen).misses(KILLED, DRILL) == []


def test_nobody_may_be_named_only_where_it_cannot_be_told() -> None:
    fault = Fault("x", Workload.DDP, "", causes=("collective_mismatch",), may_name_nobody=True)
    right = [told(cause="collective_mismatch", culprits=[])]
    assert score_fault(fault, observation(told=right, **FOUND)).culprit_right
    assert not score_fault(SLEEP, observation(told=right, **FOUND)).culprit_right


@pytest.mark.parametrize(
    ("more", "is_killed", "is_clean"),
    [
        ({}, False, True),
        ({"attempts": 2}, True, False),
        ({"told": [told()]}, False, False),
        ({"told": [told(kind="slowdown")]}, False, True),
        ({"returncode": None}, True, False),
        ({"returncode": 1}, False, False),
        ({"left": ["process 7"]}, False, False),
    ],
)
def test_a_decoy_is_clean_only_where_nothing_was_done(more: dict[str, Any], is_killed: bool, is_clean: bool) -> None:
    score = score_decoy(PAUSE, observation("idle_pause", **more))
    assert (score.killed, score.is_clean) == (is_killed, is_clean)


def test_times_come_from_the_script_s_own_log(tmp_path: Path) -> None:
    lines = [
        Entry("first", 0, 1.0, 0, 0, 10), Entry("step", 40, 5.0, 0, 0, 10), Entry("planted", 41, 5.5, 0, 1, 11),
        Entry("first", 0, 40.0, 1, 1, 21), Entry("resumed", 30, 42.0, 1, 0, 20), Entry("step", 40, 43.0, 1, 0, 20),
        Entry("step", 41, 43.5, 1, 0, 20),
    ]  # fmt: skip
    for rank in (0, 1):
        own = b"".join(msgspec.json.encode(entry) + b"\n" for entry in lines if entry.rank == rank)
        (tmp_path / f"rank-{rank}.jsonl").write_bytes(own + b'{"what": "st')
    seen = observation(told=[told(at=38.0)])
    read_times(seen, read_entries(tmp_path))
    assert (seen.planted_at, seen.last_progress_at, seen.steps_before) == (5.5, 5.0, 40)
    assert (seen.restarted_at, seen.resumed_step, seen.recovered_at, seen.attempts) == (40.0, 30, 43.5, 2)


def test_a_pause_that_ends_recovers_in_the_same_attempt() -> None:
    entries = [Entry("planted", 5, 1.0, 0, 1, 1), Entry("step", 4, 0.9, 0, 0, 1), Entry("step", 5, 4.5, 0, 0, 1)]
    seen = observation(told=[told(at=4.0, cause="gc_pause")])
    read_times(seen, sorted(entries, key=lambda entry: entry.at))
    assert (seen.steps_before, seen.recovered_at, seen.restarted_at) == (4, 4.5, None)


def test_the_line_is_found_by_its_mark_and_known_however_it_is_written() -> None:
    line = find_line("sleep", [*MARKED, SCRIPTS / "train.py"])
    file, _, number = line.rpartition(":")
    assert names_line(f"has waited in fetch ({line});", line)
    assert names_line(f'  File "/x/{file}", line {number}, in fetch', line)
    assert not names_line(f"({line}0)", line)
    with pytest.raises(ValueError, match="marked 0 times"):
        find_line("no such case", [SCRIPTS / "train.py"])


def test_every_fault_with_a_line_has_it_marked_once() -> None:
    marked = [fault.name for fault in FAULTS if fault.has_line]
    assert marked and all(find_line(name, [*MARKED, SCRIPTS / "train.py"]) for name in marked)


def test_every_case_is_planted_somewhere() -> None:
    by_name, script = {**planted.FAULTS, **planted.PAUSES, **planted.EACH_STEP}, (SCRIPTS / "train.py").read_text()
    assert [case.name for case in CASES if case.name not in by_name and f'"{case.name}"' not in script] == []


def test_there_are_enough_cases_of_every_layout() -> None:
    assert len(FAULTS) >= 25
    assert len(DECOYS) >= 10
    assert set(Counter(case.workload for case in CASES)) == {each for each in Workload if not each.is_emu}
    assert len({case.name for case in CASES}) == len(CASES)


def test_ft_launcher_s_copy_has_its_lines_and_every_line_its_number() -> None:
    script = (SCRIPTS / "train.py").read_text()
    copy = with_heartbeats(script)
    assert copy.count("send_heartbeat()") == 1
    assert "# [heartbeats]" not in copy
    assert [i for i, line in enumerate(copy.splitlines()) if "# here" in line] == [
        i for i, line in enumerate(script.splitlines()) if "# here" in line
    ]
    compile(copy, "train.py", "exec")


@pytest.mark.parametrize(
    ("launcher", "output", "cause", "culprits"),
    [
        ("torchrun", "E failed (exitcode: -9) local_rank: 1 (pid: 7) of binary", "killed", [1]),
        ("ft_launcher", "x failed (exitcode: -11) local_rank: 0 (pid: 7)", "segfault", [0]),
        (
            "ft_launcher",
            "[RankMonServer12@vm:0] Did not get subsequent heartbeat. Waited 45 s\n"
            "[RankMonServer13@vm:1] Did not get subsequent heartbeat.\nfailed (exitcode: -9) local_rank: 0",
            "",
            [0, 1],
        ),
    ],
)
def test_what_the_others_say_is_read(launcher: str, output: str, cause: str, culprits: list[int]) -> None:
    said = told_by_output(output, BY_NAME[launcher], 1.0, "")
    assert (said.cause, said.culprits) == (cause, culprits)


def test_results_outlive_an_interruption(tmp_path: Path) -> None:
    results = Results(tmp_path / "gym" / "results.jsonl")
    header = results.open(Header(machine=describe(), command="first"))
    results.append(observation(returncode=None))
    results.append(observation())
    with results.path.open("ab") as file:
        file.write(b'{"case": "sl')
    again = Results(results.path)
    assert again.open(Header(machine=describe(), command="second")) == header
    assert [seen.returncode for seen in again.read()] == [0]


def test_turns_are_the_same_for_a_seed_and_steps_for_all_launchers() -> None:
    arguments = argparse.Namespace(
        repeat=2,
        seed=3,
        only=["s*"],
        launchers=["guardrun", "torchrun"],
        hour=False,
        emu=False,
        save_with=False,
        sensitivity="normal",
        scale=0.1,
    )
    turns = choose_turns(arguments)
    assert turns == choose_turns(arguments)
    assert {turn.case.name[0] for turn in turns} == {"s"}
    steps = {(turn.case.name, turn.repeat): set[int]() for turn in turns}
    for turn in turns:
        steps[turn.case.name, turn.repeat].add(turn.step)
    assert all(len(step) == 1 for step in steps.values())
    assert turns[0].lasts_s >= turns[-1].lasts_s


def test_the_page_says_when_and_under_which_load(tmp_path: Path) -> None:
    seen = [observation(date="2026-11-21 08:00:01", load_1m=1.5), observation(date="2026-11-21 08:10:01", load_1m=0.5)]
    page = tmp_path / "gym.md"
    page.write_text(f"before\n{docs.BEGIN}\nwhat was there\n{docs.END}\nafter\n")
    played, decoys = score_all([SLEEP], [], seen)
    docs.write_docs(page, Header(machine=describe(), command="the command"), played, decoys, ["guardrun", "torchrun"])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "`the command` on" in text
    assert (
        "- guardrun: 2 cases, 2026-11-21 08:00 to 08:10 UTC, load average 0.5 to 1.5, median 1; "
        '`hang.sensitivity = "normal"`, `hang.scale = 0.1`, `hang.hard_timeout_s = 360`\n'
    ) in text
    assert "| every fault found | 0 of 2 | **MISSED** |" in text
    assert "what was there" not in text


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({}, "left alone"),
        ({"attempts": 2, "told": [told()]}, "**killed rank_blocked** (1 of 1)"),
        ({"told": [told(cause="gc_pause")]}, "**not killed, but called gc_pause** (1 of 1)"),
        ({"returncode": None}, "**not ended** (1 of 1)"),
        ({"returncode": 1}, "**ended with 1** (1 of 1)"),
        ({"left": ["process 7"]}, "**1 left running** (1 of 1)"),
    ],
)
def test_what_was_done_to_a_decoy_is_told(more: dict[str, Any], cell: str) -> None:
    played, decoys = score_all([], [PAUSE], [observation("idle_pause", **more)])
    assert f"| `idle_pause` | a pause (ddp) | 20 s | {cell} |" in as_markdown(played, decoys, ["guardrun"])


# Two moments, and patience ------------------------------------------------------------------------------

INCIDENT: dict[str, Any] = {
    "attempt": 0, "kind": "hang", "cause": "rank_blocked", "culprits": [{"rank": 1}], "summary": "", "evidence": {},
    "advice": "", "action": "restart", "detected": "2026-11-23T18:00:15.000Z", "acted": "2026-11-23T18:05:00.500Z",
}  # fmt: skip


def test_an_incident_tells_both_moments() -> None:
    read = told_by_incident(INCIDENT, "")
    assert read.acted_at is not None
    assert read.acted_at - read.at == 285.5


@pytest.mark.parametrize(
    ("change", "is_acted_on"),
    [
        ({"action": "none"}, False),
        ({"acted": None}, False),
        # A crash is acted on as it is told, and has no second time.
        ({"acted": None, "kind": "crash"}, True),
        ({"acted": None, "kind": "crash", "action": "none"}, False),
    ],
)
def test_what_nothing_was_done_about_was_not_acted_on(change: dict[str, Any], is_acted_on: bool) -> None:
    assert (acted_at({**INCIDENT, **change}) is not None) is is_acted_on


def test_guardrun_is_played_as_it_is_by_default_but_for_the_scale() -> None:
    assert BY_NAME["guardrun"].flags == ("--guard-hang-scale=0.1", "--guard-hang-hard-timeout-s=360")
    assert played_at("normal", 1).flags() == ()
    assert played_at("eager", 1).flags() == ("--guard-hang-sensitivity=eager",)
    assert played_at("normal", 0.5).hard_timeout_s == 900


@pytest.mark.parametrize(
    ("doubt", "played_s", "in_full_s", "eager_s"),
    [
        (Doubt.ASLEEP, 30, 300, 30),
        (Doubt.SPINNING, 60, 600, 120),
        (Doubt.COMPUTING, 360, 1800, 60),
        (Doubt.ALONE, 360, 1800, 60),
        (Doubt.MISMATCH, 5, 5, 5),
        (Doubt.CRASH, 0, 0, 0),
    ],
)
def test_the_policy_says_when_a_class_is_acted_on(
    doubt: Doubt, played_s: float, in_full_s: float, eager_s: float
) -> None:
    assert DRILL.acts_s(doubt) == pytest.approx(played_s)
    assert DRILL.in_full().acts_s(doubt) == in_full_s
    assert played_at("eager", 1).acts_s(doubt) == eager_s


def test_what_is_shortened_leaves_time_to_tell() -> None:
    for doubt in Doubt:
        if doubt.needs_patience:
            assert DRILL.told_within_s(doubt) - 5 < DRILL.acts_s(doubt)
    assert DRILL.told_within_s(Doubt.ASLEEP) == 20
    assert DRILL.told_within_s(Doubt.ALONE) == 65
    assert Patience(hard_timeout_s=30).told_within_s(Doubt.ALONE) == 35


def test_every_class_of_faults_is_played() -> None:
    assert {fault.doubt for fault in (*FAULTS, *EMU_FAULTS)} == set(Doubt)


def test_the_gym_waits_longer_than_guardrun_may_take() -> None:
    by_case = {fault.name: fault for fault in FAULTS}
    launcher = BY_NAME["guardrun"]
    for fault in FAULTS:
        assert launcher.cap_s(fault) > DRILL.acts_within_s(fault.doubt)
    # Four stops at one place: its patience, four times that, and twice the hard limit.
    assert launcher.cap_s(by_case["poison"]) > 30 + 120 + 360 + 360


def test_the_page_tells_both_times_and_what_patience_costs() -> None:
    seen = observation(told=[told()], **FOUND)
    played, _ = score_all([SLEEP], [], [seen])
    text = as_markdown(played, [], ["guardrun"])
    assert "| a rank asleep in one call | 1 | 15.5 s | 15.5 s | 32.0 s | 32.0 s | patience, 30 s |" in text
    assert "| a rank asleep in one call | 16 s | 30 s | 32 s | 300 s | 284 s |" in text
    assert "| `sleep` | a request (ddp) | a rank asleep in one call | 15.5 s | 32.0 s | 35.0 s | 10 |  |" in text
    assert "| told: median ≤ 20 s | 15.5 s of 1 | met |" in text
    assert "| acted on, without: when patience is over, not before | 1 of 1 | met |" in text


def test_what_was_acted_on_late_or_not_at_all_misses_the_target() -> None:
    for acted in (None, 126.0, 190.0):
        played, _ = score_all([SLEEP], [], [observation(told=[told(acted_at=acted)], **FOUND)])
        table = as_markdown(played, [], ["guardrun"])
        assert "| acted on, without: when patience is over, not before | 0 of 1 | **MISSED** |" in table


def test_what_was_played_with_another_patience_is_played_again() -> None:
    arguments = argparse.Namespace(sensitivity="normal", scale=0.1, emu=False)
    assert (
        patience_of(arguments, "guardrun")
        == DRILL
        != patience_of(argparse.Namespace(sensitivity="eager", scale=1.0, emu=False), "guardrun")
    )
    assert patience_of(arguments, "torchrun") is None
