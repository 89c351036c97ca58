"""transformers' Trainer."""

from __future__ import annotations

import os

import pytest

from tests.realworld.huggingface import CONFIG, EVERY, FLAGS, STEPS, check_history, checkpoint, is_written
from tests.realworld.training import SCRIPTS, check_killed_once, kill_once, start
from tests.support.guardrun_run import GuardrunStarter

pytestmark = pytest.mark.real("transformers")


def test_trainer_resumes_from_the_newest_whole_one(guardrun_starter: GuardrunStarter) -> None:
    """The newest one is cut short, as by a full disk, right before a rank is killed: skipped, named, left alone."""
    out = guardrun_starter.folder / "out"
    torn, whole = checkpoint(out, 3 * EVERY), checkpoint(out, 2 * EVERY)
    run = start(guardrun_starter, [str(SCRIPTS / "trainer.py"), *FLAGS], CONFIG)
    kill_once(run, lambda: is_written(torn), before=lambda: os.truncate(torn / "optimizer.pt", 1000))
    done, incident = check_killed_once(run)
    assert incident["resumed_from"] == {"path": str(whole), "step": 2 * EVERY}
    [skipped] = incident["evidence"]["skipped_checkpoints"]
    assert skipped["path"] == str(torn) and "optimizer.pt" in skipped["reason"]
    assert f"skipped checkpoint {torn}" in done.stderr
    check_history(checkpoint(out, STEPS))
