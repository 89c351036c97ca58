"""Replicas that come to differ; after a crash the next attempt trains the same steps again: whose doing was it?"""

from __future__ import annotations

from typing import Any

from tests.runs.runs import RESUME, EdgeRuns, check_show, finish, own_lines, ranks_of
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

CONFIG = RESUME + "[guards]\ncheck_every = 20\n"
MODELS = ("table", "used", "own")
EQUAL = {40, 50, 60, 70}
"""Steps of the last checks before they differ: 60 and 70, but where checks take long, on a machine with more to do."""


def diverged(run: GuardrunRun) -> dict[str, dict[str, Any]]:
    """By the layer that differs."""
    told = [incident for incident in run.incidents() if incident["cause"] == "replica_divergence"]
    return {incident["evidence"]["parameters"][0].removesuffix(".weight"): incident for incident in told}


def is_told(run: GuardrunRun) -> bool:
    """What the same steps have come to, once more. A machine with more to do may leave a check of them out."""
    return all("rerun" in one["evidence"] for one in diverged(run).values())


def test_a_rank_is_named_where_that_can_be_told_and_a_difference_that_comes_again_is_the_scripts(
    edge: EdgeRuns,
) -> None:
    run = edge.start("twice.py", config=CONFIG)
    wait_until(lambda: diverged(run).keys() == set(MODELS), 60, "the replicas of all models to differ")
    for incident in diverged(run).values():
        assert (incident["step"], ranks_of(incident)) == (80, [])
        assert incident["evidence"]["agreed_step"] in EQUAL
        assert "of two, nobody can say which one is right" in incident["summary"]
    for attempt in (1, 2, 3):
        (edge.folder / "fall").touch()
        past = edge.folder / f"past-{attempt}"
        wait_until(lambda: past.exists() or is_told(run), 60, "the same steps again")  # noqa: B023  # done by then
        if is_told(run):
            break
    (edge.folder / "end").touch()
    finished = finish(run)
    assert finished.returncode == 0, finished
    found = diverged(run)
    check_show("replicas that differ", finished, found["table"]["id"])
    for name, says in zip(MODELS, ("rank", "once", "script"), strict=True):
        rerun = found[name]["evidence"]["rerun"]
        assert rerun["attempt"] in range(1, attempt + 1)
        assert rerun["says"] == says
        assert rerun["equal_steps"] and set(rerun["equal_steps"]) <= EQUAL
    assert {name: ranks_of(one) for name, one in found.items()} == {"table": [1], "used": [], "own": []}
    assert {(one["attempt"], one["action"]) for one in found.values()} == {(0, "none")}
    for one in found.values():
        assert f"incident {one['id']}: {one['summary']}" in own_lines(finished)
    assert [incident["cause"] for incident in finished.incidents].count("killed") == attempt
    assert finished.summary is not None and len(finished.summary["attempts"]) == attempt + 1
