"""Real ranks that hold more and more; windows are short."""

from __future__ import annotations

from pathlib import Path

from tests.runs.runs import SCRIPTS, EdgeRuns, finish, only, own_lines, ranks_of
from tests.support.waiting import wait_until

WINDOWS = """
[leaks]
files_window_s = 1.5
"""


def test_a_rank_that_never_closes_its_files_is_told_and_trains_on(edge: EdgeRuns, tmp_path: Path) -> None:
    """The other one has as many open from its first steps on, and keeps them."""
    end = tmp_path / "end"
    run = edge.start(
        "plain.py", "--plan=0:shards@5:0,0:leak@5:1", "--steps=100000", "--save-every=0", f"--end={end}", config=WINDOWS
    )
    wait_until(run.incidents, 30, "an incident")
    end.touch()
    finished = finish(run)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["kind"], incident["cause"], incident["action"]) == ("memory", "descriptor_leak", "none")
    assert ranks_of(incident) == [1] and incident["attempt"] == 0
    evidence = incident["evidence"]
    assert 1256 < evidence["open_files"]["1"] < evidence["limit"] == 2048
    assert 40 * 3600 * 0.5 < evidence["per_hour"] < 40 * 3600 * 1.2
    assert 0 < evidence["left_s"] < 60
    assert evidence["newest"] == {str(SCRIPTS / "faults.py"): 200}
    assert "`with` block" in incident["advice"]
    assert (
        incident["summary"].startswith("Rank 1 on ") and "its limit of 2,048 is reached in about" in incident["summary"]
    )
    assert [line for line in own_lines(finished) if line.startswith("incident")] == [
        f"incident 001: {incident['summary']}"
    ]
