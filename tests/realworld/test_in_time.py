"""Trainers that save by themselves before the ranks are ended: no step is done twice, and all numbers are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.realworld import huggingface, lightning_trainer
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


def numbers(states: dict[str, Any]) -> list[Any]:
    """What is logged, but for times, and the average loss since this process was started."""
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second", "train_loss"))}
        for entry in states["log_history"]
    ]
    return [*history, states["total_flos"], states["global_step"]]


@pytest.mark.real("transformers")
def test_transformers(guardrun_starter: GuardrunStarter) -> None:
    """Long: transformers is imported by each rank of four attempts. Its model drops out: random states count."""
    flags = ["--output_dir=out", "--max_steps=16", "--save_strategy=steps", "--save_steps=6", "--save_total_limit=2"]
    flags += ["--eval_strategy=steps", "--eval_steps=4", "--gradient_accumulation_steps=2"]
    script = [str(SCRIPTS / "trainer.py"), *flags, *huggingface.FLAGS[4:]]
    out = guardrun_starter.folder / "out"
    done = train(guardrun_starter, FAULTS, script, huggingface.IN_TIME)
    check_saved(done, [f"checkpoint-{AT - 1}", f"checkpoint-{NEXT - 1}"], out)
    assert not list(out.glob("_guardrun*"))
    states, weights = json.loads((out / "trainer_state.json").read_text()), (out / "model.safetensors").read_bytes()
    out.rename(out.with_name("disturbed"))
    undisturbed = train(guardrun_starter, "", [*script, "--run_name=other"], huggingface.IN_TIME)
    assert undisturbed.incidents == [] and "just-in-time" not in undisturbed.stderr
    expected = json.loads((out / "trainer_state.json").read_text())
    assert numbers(states) == numbers(expected)
    assert weights == (out / "model.safetensors").read_bytes()


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
