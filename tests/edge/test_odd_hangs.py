"""Hangs that are hard to look at: each is told all the same, with its report, and mended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.edge.runs import QUICK, SCRIPTS, EdgeRuns, finish, only, ranks_of

pytestmark = pytest.mark.real("py-spy")


def told(edge: EdgeRuns, kind: str, **options: Any) -> list[dict[str, Any]]:
    """The incidents of a run that ends well."""
    finished = edge.run("odd.py", kind, config=QUICK, **options)
    assert finished.returncode == 0, str(finished)
    return finished.incidents


def test_a_rank_with_thousands_of_threads(edge: EdgeRuns) -> None:
    [incident] = told(edge, "threads")
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [1])
    assert "in wait_for_answer (odd.py:" in incident["summary"]


def test_all_ranks_guilty_each_in_its_own_place(edge: EdgeRuns) -> None:
    [incident] = told(edge, "all")
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [0, 1])
    places = {rank["at"].partition(" ")[0] for rank in incident["evidence"]["ranks"]}
    assert places == {"wait_for_answer", "wait_for_licence"}


def test_a_world_of_one(edge: EdgeRuns) -> None:
    [incident] = told(edge, "one", ranks=1)
    assert (incident["cause"], ranks_of(incident)) == ("rank_blocked", [0])


def test_two_at_once_the_one_with_proof_is_told_and_both_are_gone(edge: EdgeRuns) -> None:
    [incident] = told(edge, "two")
    assert (incident["cause"], ranks_of(incident)) == ("rank_stopped", [1])


def test_a_hang_in_the_restart_after_a_hang(edge: EdgeRuns) -> None:
    first, second = told(edge, "restart")
    assert (first["cause"], ranks_of(first), first["attempt"]) == ("rank_blocked", [1], 0)
    assert (second["cause"], ranks_of(second), second["attempt"]) == ("init", [0], 1)
    assert first["recovered"] and second["recovered"]


def test_a_script_whose_path_is_no_utf8(edge: EdgeRuns) -> None:
    folder = os.fsencode(edge.folder) + b"/caf\xe9"
    os.mkdir(folder)
    script = Path(os.fsdecode(folder)) / "odd.py"
    shutil.copy(SCRIPTS / "odd.py", script)
    incident = only(finish(edge.start(str(script), "path", config=QUICK)))
    assert incident["cause"] == "rank_blocked"
    assert "wait_for_answer" in incident["summary"]
