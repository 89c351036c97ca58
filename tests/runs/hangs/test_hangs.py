"""Hangs planted in a real training: each named, blamed on the right rank and line, and mended."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.runs.runs import QUICK, RESUME, EdgeRuns, check_show, ranks_of
from tests.support import scenes
from tests.support.guardrun_run import Finished

# Patience is measured here, and seven hangs in a row are waited for.
pytestmark = [pytest.mark.real("py-spy"), pytest.mark.timeout(400)]


class Case(NamedTuple):
    """One attempt of the run that hangs in every way in turn."""

    fault: str
    at: int
    rank: int
    cause: str
    words: str
    """What the sentence says after the rank's name, as a regular expression."""


WAITS = r"; rank \d waits for it in the backward pass\."
CASES = [
    Case(
        "init", 0, 1, "init",
        r"has not got through process-group creation: has waited \d+ s in fetch_vocabulary_update \(faults\.py:\d+\)"
        r"; rank 0 waits for it in init_process_group\.",
    ),
    Case("block", 15, 1, "rank_blocked", r"has waited \d+ s in fetch_vocabulary_update \(faults\.py:\d+\)" + WAITS),
    Case(
        "spin", 25, 0, "rank_spinning",
        r"has been running in the same few lines for \d+ s, at wait_for_flag \(faults\.py:\d+\)" + WAITS,
    ),
    Case(
        "stop", 35, 1, "rank_stopped",
        r"has been stopped by a signal for \d+ s, at .*suffer.* \(faults\.py:\d+\)" + WAITS,
    ),
    Case("gil", 45, 0, "gil_held", r"has held the GIL for \d+ s in .*suffer.* \(faults\.py:\d+\)" + WAITS),
    Case(
        "data_stall", 55, 1, "dataloader_stall",
        r"has waited \d+ s for data: its DataLoader worker \d+ is in \S*__getitem__ \(train\.py:\d+\)" + WAITS,
    ),
]  # fmt: skip

COLLECTED_AT = (60, 70)
"""In the last attempt, by rank 1."""


@pytest.fixture(scope="module")
def every_hang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A run with DataLoader workers that hangs in another way in each attempt and collects garbage in the last."""
    plan = ",".join(f"{n}:{case.fault}@{case.at}:{case.rank}" for n, case in enumerate(CASES))
    with contextlib.closing(EdgeRuns(tmp_path_factory.mktemp("hangs"))) as quick:
        collections = ",".join(f"{len(CASES)}:gc@{step}:1" for step in COLLECTED_AT)
        arguments = ["--plan", f"{plan},{collections}", "--loader", "--steps", "80"]
        yield quick.run("train.py", *arguments, config=RESUME + QUICK, timeout_s=300)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.fault for case in CASES])
def test_each_hang_has_its_name_its_culprit_and_its_line(every_hang: Finished, number: int) -> None:
    case, incident = CASES[number], every_hang.incidents[number]
    assert (incident["kind"], incident["cause"]) == ("hang", case.cause)
    assert ranks_of(incident) == [case.rank]
    assert incident["attempt"] == number
    assert re.match(rf"Rank {case.rank} on \S+ {case.words}$", incident["summary"]), incident["summary"]
    assert incident["confidence"] >= 0.8
    assert incident["action"] == "restart"
    assert incident["recovered"] is not None
    lasted = seconds_between(incident["onset"], incident["acted"])
    assert re.search(rf"\b({lasted:.0f}|{lasted - 0.5:.0f}|{lasted + 0.5:.0f}) s\b", incident["summary"])
    if case.at:
        assert incident["step"] == case.at - 1
        kept = 10 * ((case.at - 1) // 10)
        assert (incident["resumed_from"] or {"step": 0})["step"] == kept


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.fault for case in CASES])
def test_stacks_of_every_rank_and_of_its_workers_are_kept(every_hang: Finished, number: int) -> None:
    incident, stacks = every_hang.incidents[number], stacks_of(every_hang, number)
    culprit = incident["culprits"][0]
    assert {name.split("-")[1] for name in stacks} == {"0", "1"}
    assert f"rank-{culprit['rank']}-pid-{culprit['pid']}.txt" in stacks
    workers = {name for name in stacks if "_worker_loop" in stacks[name]}
    assert len(workers) == (2 if CASES[number].at else 0)


OTHER = r"^Rank {}(,|$)"
"""Where the stack of the rank that waits begins."""
SCENES = {"init": "hang at the start", "block": "hang at one step", "gil": "held GIL", "data_stall": "loader stall"}


@pytest.mark.parametrize("fault", SCENES)
def test_a_person_who_asks_is_shown_what_the_page_has(every_hang: Finished, fault: str) -> None:
    number = [case.fault for case in CASES].index(fault)
    check_show(
        SCENES[fault], every_hang, every_hang.incidents[number]["id"], until=OTHER.format(1 - CASES[number].rank)
    )


def test_all_of_them_in_one_list(every_hang: Finished) -> None:
    assert every_hang.run_dir is not None
    folder = every_hang.run_dir.parents[1]
    printed = scenes.guardctl(folder, "incidents", str(every_hang.run_dir))
    # How the last one is told depends on when it was.
    scenes.check("hangs at random steps", "guardctl incidents", printed, folder, until=f"^00{len(CASES) + 1}")


def test_the_culprit_s_stack_shows_the_call_that_does_not_return(every_hang: Finished) -> None:
    pid = every_hang.incidents[1]["culprits"][0]["pid"]
    assert "fetch_vocabulary_update" in stacks_of(every_hang, 1)[f"rank-1-pid-{pid}.txt"]


def test_the_stalled_worker_s_stack_shows_where_its_source_is_silent(every_hang: Finished) -> None:
    number = [case.fault for case in CASES].index("data_stall")
    stalled = [text for name, text in stacks_of(every_hang, number).items() if name.startswith("rank-1")]
    assert any(re.search(r"_worker_loop\n.*\n.*train\.py.* in Samples\.__getitem__\n", text) for text in stalled)


def test_a_collection_that_held_the_others_up_is_told_and_nothing_is_done(every_hang: Finished) -> None:
    assert every_hang.run_dir is not None
    journal = (every_hang.run_dir / "events.jsonl").read_text().splitlines()
    assert any('"gc_held"' in line for line in journal)
    pause = every_hang.incidents[-1]
    assert (pause["kind"], pause["cause"], pause["action"]) == ("hang", "gc_pause", "none"), journal[-40:]
    assert ranks_of(pause) == [1]
    assert pause["step"] + 1 in COLLECTED_AT
    assert pause["evidence"]["waiting"] == [0]
    # Told while it went on where that took long, else when it was over.
    assert re.match(r"Rank 1 on \S+ (held the others up for|has been in) .*garbage collection", pause["summary"])
    assert pause["recovered"] is not None


def test_the_run_ends_well_and_books_where_the_time_went(every_hang: Finished) -> None:
    assert every_hang.returncode == 0
    assert len(every_hang.incidents) == len(CASES) + 1
    summary = every_hang.summary
    assert summary is not None
    assert summary["last_step"] == 80
    lost = summary["lost_s"]
    assert lost["detecting"] > 15
    assert lost["stopping"] < lost["detecting"]
    assert sum(lost.values()) + summary["goodput"] * summary["wall_s"] == pytest.approx(summary["wall_s"], rel=0.02)


def test_no_worker_of_an_attempt_lives_when_the_next_starts(every_hang: Finished) -> None:
    starts = re.findall(r"attempt (\d+) rank \d: starts at step \d+, alive of before: (.*)", every_hang.stdout)
    assert len(starts) == 2 * len(CASES)
    assert {alive for _, alive in starts} == {"[]"}


def seconds_between(earlier: str, later: str) -> float:
    first, second = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (earlier, later))
    return (second - first).total_seconds()


def stacks_of(finished: Finished, number: int) -> dict[str, str]:
    """The files of an incident's last look."""
    assert finished.run_dir is not None
    incident: dict[str, Any] = finished.incidents[number]
    folder: Path = finished.run_dir / "incidents" / f"{incident['id']}-{incident['cause']}" / "stacks"
    return {path.name: path.read_text() for path in folder.glob("rank-*.txt")}
