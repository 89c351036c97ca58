"""Hangs that are hard to look at: each is told all the same, with its report, and mended."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import QUICK, SCRIPTS, EdgeRuns, only, ranks_of
from tests.support.guardrun_run import Finished

pytestmark = pytest.mark.real("py-spy")

KINDS = ("restart", "threads", "all", "two", "one", "path")


def play(runs: EdgeRuns, kind: str) -> Finished:
    """A run with one of odd.py's hangs, to its end."""
    script = SCRIPTS / "odd.py"
    if kind == "path":
        folder = os.fsencode(runs.folder) + b"/caf\xe9"
        os.mkdir(folder)
        script = Path(shutil.copy(script, os.fsdecode(folder)))
    return runs.run(str(script), kind, config=QUICK, ranks=1 if kind == "one" else 2)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Finished]]:
    """All of them, two at a time: each waits more than it computes."""
    with contextlib.ExitStack() as closing, ThreadPoolExecutor(2) as pool:
        runs = [closing.enter_context(contextlib.closing(EdgeRuns(tmp_path_factory.mktemp(kind)))) for kind in KINDS]
        yield dict(zip(KINDS, pool.map(play, runs, KINDS), strict=True))


def told(played: dict[str, Finished], kind: str) -> list[dict[str, Any]]:
    """The incidents of a run that ends well."""
    finished = played[kind]
    assert finished.returncode == 0, str(finished)
    return finished.incidents


def test_a_rank_with_thousands_of_threads(played: dict[str, Finished]) -> None:
    [incident] = told(played, "threads")
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [1])
    assert "in wait_for_answer (odd.py:" in incident["summary"]


def test_all_ranks_guilty_each_in_its_own_place(played: dict[str, Finished]) -> None:
    [incident] = told(played, "all")
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [0, 1])
    places = {rank["at"].partition(" ")[0] for rank in incident["evidence"]["ranks"]}
    assert places == {"wait_for_answer", "wait_for_licence"}


def test_a_world_of_one(played: dict[str, Finished]) -> None:
    [incident] = told(played, "one")
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [0])


def test_two_at_once_the_one_with_proof_is_told_and_both_are_gone(played: dict[str, Finished]) -> None:
    [incident] = told(played, "two")
    assert (incident["cause"], ranks_of(incident)) == ("rank_stopped", [1])


def test_a_hang_in_the_restart_after_a_hang(played: dict[str, Finished]) -> None:
    first, second = told(played, "restart")
    assert (first["cause"], ranks_of(first), first["attempt"]) == ("rank_blocked", [1], 0)
    assert (second["cause"], ranks_of(second), second["attempt"]) == ("init", [0], 1)
    assert first["recovered"] and second["recovered"]


def test_a_script_whose_path_is_no_utf8(played: dict[str, Finished]) -> None:
    incident = only(played["path"])
    assert incident["cause"] == "rank_blocked"
    assert "wait_for_answer" in incident["summary"]
