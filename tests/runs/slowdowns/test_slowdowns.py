"""Real DDP trainings whose ranks become slow, or have always been unequal; windows are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.runs import EdgeRuns, check_show, finish, only, own_lines, ranks_of
from tests.support.waiting import wait_until

WINDOWS = """
[slowdown]
window_s = 3
"""
LONG_WINDOWS = """
[slowdown]
window_s = 8
"""
"""Three of them are a third of a minute; what is usual in brief ones is known within as much."""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[EdgeRuns]:
    runs = EdgeRuns(tmp_path)
    yield runs
    runs.close()


def test_a_rank_that_becomes_slow_is_told_while_training_goes_on(runs: EdgeRuns) -> None:
    """By so much that a busy machine's bursts are nothing to it: told before three windows are over.

    Long: what is usual is learned first.
    """
    end = runs.folder / "end"
    run = runs.start("slow.py", "--steps=10000", "--slow=2@380:0.4", f"--end={end}", config=LONG_WINDOWS, ranks=3)
    [told] = wait_until(run.incidents, 120, "an incident")
    # The ranks must not be beyond it before they can read it: they would end at different steps.
    (runs.folder / "new").write_text(str(told["step"] + 15))
    (runs.folder / "new").rename(end)
    finished = finish(run)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["kind"], incident["cause"], incident["action"]) == ("slowdown", "straggler", "none")
    assert ranks_of(incident) == [2]
    assert "who wait for it: steps take " in incident["summary"]
    assert incident["evidence"]["own_s"]["2"] > 0.4
    assert incident["evidence"]["others_own_s"] < incident["evidence"]["own_s"]["2"] / 1.75
    assert incident["attempt"] == 0 and incident["recovered"] is None
    assert incident["confidence"] in (0.7, 0.75), "by brief windows; or by three others, too, if these were over first"
    check_show("a straggler", finished)


def test_ranks_that_have_always_been_unequal_are_left_alone(runs: EdgeRuns) -> None:
    """A stage with more to do, a rank 0 that logs and evaluates, and samples of uneven length, all at once."""
    uneven = ("--stages=1:1.5", "--log-s=0.01", "--eval-every=60", "--uneven=0.4")
    finished = runs.run("slow.py", "--steps=300", *uneven, config=WINDOWS, ranks=3, timeout_s=150)
    assert finished.returncode == 0 and finished.incidents == [], finished
    assert not [line for line in own_lines(finished) if "incident" in line]


def test_slow_data_and_steps_that_grow_for_all_are_told_for_what_they_are(runs: EdgeRuns) -> None:
    """Samples that take long to make; then, on all ranks alike, twice the work."""
    finished = runs.run(
        "slow.py",
        "--steps=395",
        "--work-s=0.09",
        "--sample-s=0.05",
        "--grow=210:2.4",
        config=WINDOWS,
        ranks=2,
        timeout_s=280,
    )
    assert finished.returncode == 0, finished
    data, drop = finished.incidents
    check_show("slow data", finished, data["id"])
    check_show("throughput drops", finished, drop["id"])
    assert (data["kind"], data["cause"], data["culprits"]) == ("slowdown", "dataloader_bound", [])
    assert 0.2 < data["evidence"]["share"] < 0.6
    assert (drop["kind"], drop["cause"], drop["culprits"]) == ("slowdown", "throughput_drop", [])
    assert drop["evidence"]["part"] == "work"
    assert {incident["action"] for incident in finished.incidents} == {"none"}
