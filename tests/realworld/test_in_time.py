"""Lightning's Trainer saves by itself before the ranks are ended: no step is done twice, and all numbers are the same.

transformers', on two nodes: tests/fleet_runs/test_in_time.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.realworld import lightning_trainer
from tests.realworld.training import SCRIPTS, start
from tests.support.guardrun_run import Finished, GuardrunStarter

AT, NEXT = 9, 11
FAULTS = f"kill@{AT}:0,stop@{NEXT}:1"
"""Of the first attempt, and of the second."""


def train(starter: GuardrunStarter, faults: str, script: list[str], config: str) -> Finished:
    run = start(starter, [str(SCRIPTS / "fault.py"), faults, *script], config)
    done = run.wait(240)
    assert done.returncode == 0, done
    return done


def check_saved(done: Finished, names: list[str], out: Path) -> None:
    """By the rank that was well, and resumed from."""
    assert [incident["cause"] for incident in done.incidents] == ["killed", "rank_stopped"], done
    for incident, rank, step, name in zip(done.incidents, (1, 0), (AT - 1, NEXT - 1), names, strict=True):
        jit: dict[str, Any] = incident["evidence"]["jit"]
        assert jit.items() >= {"rank": rank, "step": step, "path": str(out / name)}.items(), done
        assert "unchecked" not in jit
        assert incident["resumed_from"] == {"path": jit["path"], "step": step}


@pytest.mark.real("lightning")
def test_lightning(guardrun_starter: GuardrunStarter) -> None:
    """Long: Lightning is imported by each rank of four attempts."""
    script = [str(SCRIPTS / "lit_steps.py")]
    done = train(guardrun_starter, FAULTS, script, lightning_trainer.IN_TIME)
    names = [f"guardrun-epoch=0-step={step}.ckpt" for step in (AT - 1, NEXT - 1)]
    check_saved(done, names, guardrun_starter.folder / "out")
    undisturbed = train(guardrun_starter, "", script, lightning_trainer.IN_TIME)
    [weights] = [line for line in undisturbed.stdout.splitlines() if line.startswith("weights ")]
    assert weights in done.stdout.splitlines()
