"""Real ranks that hold more and more, by the clock: who stood still for a moment catches up. Windows are short."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runs.runs import SCRIPTS, EdgeRuns, check_show, finish, only, own_lines, ranks_of
from tests.support.waiting import wait_until

WINDOWS = """
[leaks]
files_window_s = 3
memory_window_s = 3
"""


def test_a_rank_that_never_closes_its_files_is_told_and_trains_on(edge: EdgeRuns, tmp_path: Path) -> None:
    """The other one has as many open from its first steps on, and keeps them."""
    end = tmp_path / "end"
    run = edge.start(
        "plain.py", "--plan=0:shards@5:0,0:leak@5:1", "--steps=100000", "--save-every=0", f"--end={end}", config=WINDOWS
    )
    wait_until(run.incidents, 90, "an incident")
    end.touch()
    finished = finish(run)
    assert finished.returncode == 0, finished
    incident = only(finished)
    assert (incident["kind"], incident["cause"], incident["action"]) == ("memory", "descriptor_leak", "none")
    assert ranks_of(incident) == [1] and incident["attempt"] == 0
    evidence = incident["evidence"]
    assert 2256 < evidence["open_files"]["1"] < evidence["limit"] == 4096
    assert 20 * 3600 * 0.5 < evidence["per_hour"] < 20 * 3600 * 1.5
    assert 0 < evidence["left_s"] < 200
    assert evidence["newest"] == {str(SCRIPTS / "faults.py"): 200}
    assert "`with` block" in incident["advice"]
    assert (
        incident["summary"].startswith("Rank 1 on ") and "its limit of 4,096 is reached in about" in incident["summary"]
    )
    assert [line for line in own_lines(finished) if line.startswith("incident")] == [
        f"incident 001: {incident['summary']}"
    ]


def test_a_rank_that_holds_more_and_more_memory_is_told_and_trains_on(edge: EdgeRuns, tmp_path: Path) -> None:
    """The other one fills a cache and empties it, again and again; one may have 600 MiB more, the other 900.

    Asked for its lines while it trains, the one that leaks names the line; both go on, and nobody is blamed for that.
    """
    end = tmp_path / "end"
    run = edge.start(
        "plain.py", "--plan=0:cache@5:0,0:hoard@5:1", "--steps=100000", "--save-every=0", f"--end={end}", config=WINDOWS
    )
    wait_until(run.incidents, 90, "an incident")
    told = json.loads(run.guardctl("memory", "0", "1", "--seconds", "10", "--json"))
    end.touch()
    finished = finish(run)
    assert finished.returncode == 0, finished
    assert (told["missing"], sorted(told["ranks"])) == ({}, ["0", "1"])
    leaking, grown = told["ranks"]["1"]["sites"][0], told["ranks"]["1"]["grown"]
    assert (leaking["file"], leaking["function"]) == (str(SCRIPTS / "faults.py"), "hold")
    assert "bytearray(b" in (SCRIPTS / "faults.py").read_text().splitlines()[leaking["line"] - 1]
    assert leaking["bytes"] > 20 << 20 and grown["python_bytes"] > 0.5 * grown["resident_bytes"] > 0
    assert grown["steps"] > 10
    incident = only(finished)
    assert "`guardctl memory 1`" in incident["advice"]
    assert (incident["kind"], incident["cause"], incident["action"]) == ("memory", "host_leak", "none")
    assert ranks_of(incident) == [1] and incident["attempt"] == 0
    check_show("memory growth", finished)
    evidence = incident["evidence"]
    assert (evidence["part"], evidence["pid"]) == ("own", incident["culprits"][0]["pid"])
    assert 12 * 3600 * 0.5 < evidence["per_hour_bytes"] / (1 << 20) < 12 * 3600 * 1.5
    assert evidence["used_bytes"] < evidence["limit_bytes"]
    assert 0 < evidence["left_range_s"][0] <= evidence["left_s"] <= evidence["left_range_s"][1] < 200
    assert incident["summary"].startswith("Rank 1 on ") and "in its own process" in incident["summary"]
    assert [line for line in own_lines(finished) if line.startswith("incident")] == [
        f"incident 001: {incident['summary']}"
    ]
