"""Training that is alive and wrong, and what the user has asked for."""

from __future__ import annotations

from tests.runs.runs import SCRIPTS, EdgeRuns
from tests.support.keep_group import KEEP_GROUP

SCRIPT = str(SCRIPTS / "guarded.py")
TOLD = 'step 20 was left out on both ranks ([guards] numeric = "skip"): gradients were not finite on rank 1'


def test_a_bad_step_is_left_out_and_told(edge: EdgeRuns) -> None:
    finished = edge.run(KEEP_GROUP, SCRIPT, config='[guards]\nnumeric = "skip"\n')
    assert finished.returncode == 0 and finished.incidents == []
    assert finished.stdout.count("finite: True") == 2
    assert TOLD in finished.stderr


def test_without_asking_training_is_what_it_is(edge: EdgeRuns) -> None:
    finished = edge.run(KEEP_GROUP, SCRIPT, config="")
    assert finished.returncode == 0
    assert finished.stdout.count("finite: False") == 2
    assert "left out" not in finished.stderr
