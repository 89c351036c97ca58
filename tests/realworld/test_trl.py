"""TRL's own script for supervised fine-tuning, as it lies in the package: nobody here wrote it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.realworld.huggingface import EVERY, FLAGS, IN_TIME, STEPS, check_history, checkpoint, is_written
from tests.realworld.training import SCRIPTS, check_killed_once, kill_once, start
from tests.support.guardrun_run import GuardrunStarter

pytestmark = pytest.mark.real("trl")

OWN_FLAGS = ["--model_name_or_path=model", "--dataset_name=data", "--bf16=False", "--gradient_checkpointing=False"]


def test_sft_goes_on_after_a_rank_was_killed(guardrun_starter: GuardrunStarter) -> None:
    """Long: TRL and what it stands on is imported by each rank of two attempts."""
    prepare = [sys.executable, str(SCRIPTS / "prepare.py"), str(guardrun_starter.folder)]
    subprocess.run(prepare, check=True, capture_output=True, timeout=60)
    out = guardrun_starter.folder / "out"
    run = start(guardrun_starter, ["-m", "trl.scripts.sft", *FLAGS, *OWN_FLAGS], IN_TIME)
    kill_once(run, lambda: is_written(checkpoint(out, 2 * EVERY)))
    done, incident = check_killed_once(run)
    step, jit = incident["resumed_from"]["step"], incident["evidence"]["jit"]
    assert step >= 2 * EVERY and incident["resumed_from"]["path"] == str(checkpoint(out, step))
    if "why" in jit:  # between a step and the next one, it logs; and right after its own save there is one already
        assert ("its Trainer " in jit["why"] or "is there already" in jit["why"]) and step % EVERY == 0, jit
    else:
        assert (jit["rank"], jit["step"]) == (0, step), jit
    check_history(checkpoint(out, STEPS))
    assert "Training completed." in done.stdout
    assert (out / "model.safetensors").is_file()
