"""What looks like a hang and is none: no incident of that kind, no restart, whatever the patience.

Each decoy lasts longer than an idle rank is given; all of them happen to one run, one after the other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from tests.edge.runs import RESUME, EdgeRuns, read_log
from tests.support.guardrun_run import Finished

pytestmark = pytest.mark.real("py-spy")

HASTY = """
[hang]
floor_s = 1.5
look_gap_s = 0.7
look_every_s = 1
idle_patience_s = 4
data_patience_s = 9
gil_patience_s = 9
spin_patience_s = 9
"""
LASTS_S = 6.0
"""Longer than floor and idle patience, shorter than the patience with a silent data source."""

DECOYS = {
    "first": "1:*",  # the first step takes long, on all ranks, computing
    "eval": "11:0",  # rank 0 evaluates while the others wait
    "save": "21:0",  # rank 0 writes while the others wait
    "compile": "31:0",  # rank 0 waits for processes that compute
    "pause": "41:*",  # nobody does anything: shared data that comes late
    "stop_briefly": "51:1",  # stopped, and let run again within a second
}


@pytest.fixture(scope="module")
def every_decoy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    plan = ",".join(f"0:{name}@{where}" for name, where in DECOYS.items())
    with contextlib.closing(EdgeRuns(tmp_path_factory.mktemp("decoys"))) as runs:
        arguments = ["--plan", plan, "--seconds", str(LASTS_S), "--steps", "60"]
        yield runs.run("train.py", *arguments, config=RESUME + HASTY, timeout_s=200)


def test_no_decoy_is_taken_for_a_hang(every_decoy: Finished) -> None:
    assert every_decoy.incidents == []
    assert every_decoy.returncode == 0
    assert every_decoy.summary is not None
    assert every_decoy.summary["restarts"] == 0
    assert every_decoy.summary["last_step"] == 60


def test_they_were_looked_at_so_it_was_no_lack_of_suspicion(every_decoy: Finished) -> None:
    assert every_decoy.run_dir is not None
    looks = [line for line in read_log(every_decoy.run_dir) if line.get("action_type") == "TakeLook"]
    assert len(looks) >= 2 * len(DECOYS) - 2


def test_nothing_is_said_about_them_on_the_terminal(every_decoy: Finished) -> None:
    assert re.findall("^guardrun: .*", every_decoy.stderr, re.M) == []


def test_a_pause_in_a_data_loader_s_worker_that_ends_is_no_stall(edge: EdgeRuns) -> None:
    """The worker of one rank is silent for longer than an idle rank is given, and goes on."""
    arguments = ["--plan", "0:data_pause@15:1", "--loader", "--seconds", str(LASTS_S), "--steps", "30"]
    finished = edge.run("train.py", *arguments, config=RESUME + HASTY)
    assert finished.incidents == []
    assert finished.returncode == 0
