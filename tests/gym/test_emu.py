"""What the gym has on the emulated device, and what it makes of torch's words: pure."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import Any

import msgspec
import pytest

from benchmarks.gym import docs
from benchmarks.gym.case import Doubt, Fault, Workload
from benchmarks.gym.emu import tables
from benchmarks.gym.emu.decoys import EMU_DECOYS
from benchmarks.gym.emu.faults import EMU_FAULTS
from benchmarks.gym.emu.launchers import NCCL_TIMEOUT_S, device_environment, launchers_on_devices
from benchmarks.gym.launchers import BY_NAME
from benchmarks.gym.observation import Observation, told_by_stall
from benchmarks.gym.patience import played_at, played_on_devices
from benchmarks.gym.play import SCRIPTS, Turn, told_by_output
from benchmarks.gym.score import score_fault
from benchmarks.gym.scripts.emu import suffering
from benchmarks.gym.suite import CASES, DOCS, EMU_CASES, choose_turns, patience_of
from benchmarks.gym.summary import score_all

DRILL = played_on_devices("normal", 0.1)
GUARDRUN, TORCHRUN = launchers_on_devices("normal", 0.1)
TIMEOUT = (
    "[rank0]:[E1125 18:01:02.345 ProcessGroupNCCL.cpp:757] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60031 milliseconds"
)
LOST = (
    "[rank2]:[E1125 18:01:02.345 ProcessGroupNCCL.cpp:714] [Rank 2] Collective WorkNCCL(SeqNum=5, OpType=COALESCED, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=60000) raised the following async exception: NCCL error: remote process exited"
)
STUCK = (
    "[rank1]:[E1125 18:01:02.345 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's "
    "watchdog got stuck for 5 seconds without making progress"
)
ENDED = "E failed (exitcode: -9) local_rank: 1 (pid: 7) of binary"


def test_there_are_enough_cases_in_every_layout() -> None:
    assert len(EMU_FAULTS) >= 30
    assert len(EMU_DECOYS) >= 20
    layouts = {each for each in Workload if each.is_emu}
    assert set(Counter(case.workload for case in EMU_FAULTS)) == layouts
    assert set(Counter(case.workload for case in EMU_DECOYS)) == layouts
    assert len({case.name for case in (*CASES, *EMU_CASES)}) == len(CASES) + len(EMU_CASES)


def test_every_case_is_planted_somewhere_and_its_line_is_marked_once() -> None:
    by_name = {**suffering.FAULTS, **suffering.PAUSES}
    folder = SCRIPTS / "emu"
    scripts = "".join((folder / name).read_text() for name in ("train.py", "layouts.py", "mixed.py"))
    for case in EMU_CASES:
        assert case.name in by_name or f'"{case.name}"' in scripts, case.name
        has_line = isinstance(case, Fault) and case.has_line
        assert bool(Turn(case, GUARDRUN, 0, 1).line) == has_line, case.name


def test_all_that_is_planted_is_a_case_s() -> None:
    names = {case.name for case in EMU_CASES}
    assert {*suffering.FAULTS, *suffering.PAUSES} <= names


def test_every_planting_is_in_a_rank_that_there_is() -> None:
    for case in EMU_CASES:
        assert set(case.planted_in) <= set(range(case.world_size)), case.name


def test_guardrun_is_as_patient_as_torch_with_what_a_device_holds_up() -> None:
    assert DRILL.acts_s(Doubt.DEVICE) == NCCL_TIMEOUT_S * 0.1
    assert DRILL.in_full().acts_s(Doubt.DEVICE) == NCCL_TIMEOUT_S
    assert DRILL.acts_s(Doubt.ASLEEP) == played_at("normal", 0.1).acts_s(Doubt.ASLEEP)
    assert GUARDRUN.flags == ("--guard-hang-scale=0.1", "--guard-hang-hard-timeout-s=60")
    assert launchers_on_devices("normal", 1)[0].flags == ()


def test_what_is_healthy_is_over_before_anybody_s_patience_is() -> None:
    for decoy in EMU_DECOYS:
        assert decoy.seconds < DRILL.acts_s(Doubt.ASLEEP) < NCCL_TIMEOUT_S * 0.1, decoy.name


def test_torch_is_scaled_as_guardrun_is() -> None:
    assert device_environment(0.1)["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "48"
    assert device_environment(1)["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "15000"
    for launcher in (GUARDRUN, TORCHRUN):
        assert device_environment(0.1).items() <= launcher.environment.items()
    assert TORCHRUN.hang_cap_s > NCCL_TIMEOUT_S * 0.1


@pytest.mark.parametrize(
    ("output", "kind", "culprits", "words"),
    [
        (f"{TIMEOUT}\n{ENDED}", "hang", [0], "timeout in ALLREDUCE"),
        (f"{TIMEOUT}\n{TIMEOUT.replace('Rank 0', 'Rank 2')}\n{ENDED}", "hang", [0, 2], "timeout in ALLREDUCE"),
        (f"{LOST}\n{ENDED}", "hang", [2], "lost its peer in COALESCED"),
        (f"{STUCK}\n{ENDED}", "hang", [1], "its own watchdog got stuck"),
        (ENDED, "crash", [1], "ended, exit code -9"),
    ],
)
def test_the_first_of_torch_s_words_counts(output: str, kind: str, culprits: list[int], words: str) -> None:
    said = told_by_output(output, TORCHRUN, 1.0, "")
    assert (said.kind, said.culprits) == (kind, culprits)
    assert tables.words_of(observation("torchrun", told=[said])) == words


def observation(launcher: str, **more: Any) -> Observation:
    base = {"case": "emu_sleep", "launcher": launcher, "repeat": 0, "seed": 1, "step": 40, "date": "", "cap_s": 90.0}
    if launcher == "guardrun":
        base["patience"] = DRILL
    return msgspec.convert(
        {**base, "returncode": 1, "planted_at": 100.0, "last_progress_at": 100.0, **more}, Observation
    )


def test_the_page_has_what_torch_says_beside_guardrun_s_verdict() -> None:
    told = {
        "at": 117.0,
        "acted_at": 131.0,
        "kind": "hang",
        "cause": "rank_blocked",
        "culprits": [1],
        "names_line": True,
    }
    guardrun = observation("guardrun", told=[told], attempts=2, recovered_at=140.0)
    watchdog = msgspec.to_builtins(told_by_output(TIMEOUT, TORCHRUN, 160.5, ""))
    silent = observation("torchrun", told=[watchdog])
    faults = [fault for fault in EMU_FAULTS if fault.name == "emu_sleep"]
    decoys = [decoy for decoy in EMU_DECOYS if decoy.name == "emu_busy"]
    healthy = observation("guardrun", case="emu_busy", returncode=0, stalls=["all wait"])
    played, left_alone = score_all(faults, decoys, [guardrun, silent, healthy])
    text = tables.as_markdown(played, left_alone, ["guardrun", "torchrun"])
    row = next(line for line in text.splitlines() if line.startswith("| `emu_sleep`"))
    assert row.endswith(
        "| rank_blocked | rank 1 | 17.0 s | 31.0 s | 40.0 s |  | 60.5 s: rank 0: timeout in ALLREDUCE |"
    )
    assert "| culprits right, or rightly nobody | 1 of 1 | 0 of 1 |" in text
    assert "| decoys harmed | 0 of 1 | – |" in text
    assert re.search(r"^\| `emu_busy` \| .* \| 24 s \| left alone, reported \| not played \|$", text, re.MULTILINE)
    assert "timeout 60 s in place of 600 s" in text


def test_the_page_has_a_place_for_it() -> None:
    text = DOCS.read_text()
    assert text.count(docs.EMU_BEGIN) == text.count(docs.EMU_END) == 1


def test_it_is_played_where_it_is_asked_for() -> None:
    arguments = argparse.Namespace(
        repeat=1, seed=1, only=None, launchers=["guardrun", "torchrun"], hour=False, emu=True, sensitivity="normal",
        scale=0.1,
    )  # fmt: skip
    turns = choose_turns(arguments)
    assert len(turns) == 2 * len(EMU_CASES)
    assert {turn.launcher.name for turn in turns} == {"guardrun", "torchrun"}
    assert patience_of(arguments, "guardrun") == DRILL
    assert patience_of(arguments, "torchrun") is None
    assert BY_NAME["torchrun"].flags != TORCHRUN.flags


def test_what_is_only_reported_is_found_by_that_and_need_not_be_acted_on() -> None:
    fault = next(fault for fault in EMU_FAULTS if fault.is_only_told)
    stall = {
        "cause": "rank_blocked",
        "who": [{"rank": rank} for rank in fault.to_name],
        "summary": "…",
        "told_s_ago": 30.0,
    }
    told = told_by_stall(stall, 191.0)
    assert (told.at, told.acted_at, told.kind) == (161.0, None, "hang")
    score = score_fault(
        fault, observation("guardrun", case=fault.name, told=[msgspec.to_builtins(told)], returncode=None)
    )
    assert (score.verdict_s, score.recovered, score.misses(fault, DRILL)) == (61.0, None, [])
    assert score_fault(fault, observation("guardrun", case=fault.name)).misses(fault, DRILL) == ["not found"]
