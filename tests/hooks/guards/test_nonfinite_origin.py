"""Where numbers stop to be finite is named by module; training computes the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guardrun.hooks.guards.module_lives import DEAD
from guardrun.hooks.wire.messages import BatchesNamed, GradientsGrew, HookFailed, ModulesDied
from tests.hooks.bed import Bed, finish

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "nonfinite.py")
STEPS, BAD = 6, 3
DIES_AT, GROWS_AT = 100, 700
"""Steps at which that is looked at; it is so at every tenth."""


def test_the_first_module_is_named_and_nothing_is_another_for_it(bed: Bed, tmp_path: Path) -> None:
    bed.detect = "deep"
    bed.make_board()
    done = finish(bed.start([SCRIPT, str(tmp_path / "ours")]))
    assert done.returncode == 0, done
    assert bed.hear_all(HookFailed) == []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")}
    subprocess.run([sys.executable, SCRIPT, str(tmp_path / "theirs")], env=environment, check=True)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes() != b""
    assert [(named.step, named.origin) for named in bed.hear_all(BatchesNamed)] == [
        (STEPS + BAD, "the output of body.1 (Ratio)"),
        (2 * STEPS + BAD, "the gradient of the output of body.2 (Linear)"),
        (3 * STEPS + BAD, "the output of body.0 (Linear)"),
    ]
    (died,) = bed.hear_all(ModulesDied)
    assert (died.what, died.modules, died.count, died.looks) == ("output", ["1 (ReLU)"], 1, DEAD)
    assert (died.since, died.step) == (DIES_AT, DIES_AT + 10 * (DEAD - 1))
    (grew,) = bed.hear_all(GradientsGrew)
    assert (grew.step, grew.count) == (GROWS_AT, 2)
    ((name, usual, now),) = grew.groups
    assert name == "2" and now == pytest.approx(50 * usual), "the other one has no gradient any more"


def test_nobody_asked_for_it(bed: Bed, tmp_path: Path) -> None:
    bed.make_board()
    done = finish(bed.start([SCRIPT, str(tmp_path / "ours")]))
    assert done.returncode == 0, done
    assert [named.origin for named in bed.hear_all(BatchesNamed)] == ["", "", ""]
    assert bed.hear_all(ModulesDied) == [] and bed.hear_all(GradientsGrew) == []
