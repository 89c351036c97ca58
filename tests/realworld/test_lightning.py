"""Lightning's Trainer, ModelCheckpoint and `ckpt_path`."""

from __future__ import annotations

import os

import pytest

from tests.realworld.lightning_trainer import CONFIG, EVERY, FLAGS, check_end, checkpoint
from tests.realworld.training import check_killed_once, kill_once, start
from tests.support.guardrun_run import GuardrunStarter

pytestmark = pytest.mark.real("lightning")


def test_fit_goes_on_after_a_rank_was_killed(guardrun_starter: GuardrunStarter) -> None:
    """With last.ckpt beside: the same checkpoint twice, and either will do."""
    folder = guardrun_starter.folder
    run = start(guardrun_starter, [*FLAGS, "--save_last"], CONFIG)
    kill_once(run, checkpoint(folder, 2 * EVERY).exists)
    done, incident = check_killed_once(run)
    resumed = incident["resumed_from"]
    assert resumed["step"] >= EVERY and resumed["step"] % EVERY == 0
    assert resumed["path"] in (str(checkpoint(folder, resumed["step"])), str(folder / "checkpoints" / "last.ckpt"))
    assert f"Restoring states from the checkpoint path at {resumed['path']}" in done.stdout + done.stderr
    check_end(done.stdout, folder)


def test_one_that_is_cut_short_is_passed_over(guardrun_starter: GuardrunStarter) -> None:
    """Long: Lightning is imported by each rank of two attempts."""
    folder = guardrun_starter.folder
    torn, whole = checkpoint(folder, 3 * EVERY), checkpoint(folder, 2 * EVERY)
    run = start(guardrun_starter, FLAGS, CONFIG)
    kill_once(run, torn.exists, before=lambda: os.truncate(torn, 5000))
    done, incident = check_killed_once(run)
    assert incident["resumed_from"] == {"path": str(whole), "step": 2 * EVERY}
    assert [skipped["path"] for skipped in incident["evidence"]["skipped_checkpoints"]] == [str(torn)]
    check_end(done.stdout, folder)
