"""Trainers that know nothing of guardrun save by their own ways when their job is about to end, and go on there."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.realworld import huggingface, lightning_trainer
from tests.realworld.training import SCRIPTS, WAIT_S, start
from tests.support.guardrun_run import Finished, GuardrunStarter
from tests.support.waiting import wait_until

NAMED = ["--guard-run-id=mine"]
STEPS = 900
"""However fast the machine: not over before the ranks have been asked, have saved and are stopped."""
MANY = 20
"""Steps after which the warning comes."""
FURTHER = 60
"""Steps beyond where the ranks were last seen before they were stopped."""


def warn(starter: GuardrunStarter, script: list[str], config: str) -> dict[str, Any]:
    """SIGUSR1 in the midst of the training; the run's incident."""
    run = start(starter, script, config, NAMED)

    def trains() -> bool:
        assert run.process.poll() is None, f"ended too soon: {run.result()}"
        journal = run.run_dir / "events.jsonl" if run.run_dir else None
        steps = re.findall(r'"step":(\d+)\b', journal.read_text()) if journal is not None and journal.exists() else []
        return max(map(int, steps), default=0) >= MANY

    wait_until(trains, WAIT_S, f"step {MANY}", every_s=0.05)
    run.send(signal.SIGUSR1)
    done = run.wait(WAIT_S)
    assert run.alive() == []
    assert done.returncode == 138, done
    [incident] = done.incidents
    assert incident["kind"] == "preemption" and incident["evidence"]["in_time"] is True, incident
    assert incident["evidence"]["asked"] is True
    return incident


def go_on(starter: GuardrunStarter, script: list[str], config: str, incident: dict[str, Any]) -> Finished:
    """The same run again, to a nearer end."""
    done = start(starter, script, config, NAMED).wait(WAIT_S)
    assert done.returncode == 0, done
    [told] = done.incidents
    assert told["resumed_from"] == incident["evidence"]["checkpoint"] and told["recovered"] is not None
    return done


@pytest.mark.real("transformers")
def test_transformers(guardrun_starter: GuardrunStarter) -> None:
    """Long: transformers is imported by each rank of two runs."""
    out = guardrun_starter.folder / "out"
    # Of its own accord it would save at the end alone.
    script = [str(SCRIPTS / "trainer.py"), *huggingface.FLAGS, "--save_steps=1000"]
    incident = warn(guardrun_starter, [*script, f"--max_steps={STEPS}"], huggingface.CONFIG)
    saved = incident["evidence"]["checkpoint"]
    assert MANY <= saved["step"] < STEPS
    assert saved["path"] == str(huggingface.checkpoint(out, saved["step"]))
    end = incident["step"] + FURTHER
    go_on(guardrun_starter, [*script, f"--max_steps={end}"], huggingface.CONFIG, incident)
    huggingface.check_history(huggingface.checkpoint(out, end), end)


@pytest.mark.real("lightning")
def test_lightning_trainer(guardrun_starter: GuardrunStarter) -> None:
    """Long: Lightning is imported by each rank of two runs."""
    script = [str(SCRIPTS / "lit.py"), "--every=1000"]
    incident = warn(guardrun_starter, [*script, f"--max_steps={STEPS}"], lightning_trainer.CONFIG)
    saved = incident["evidence"]["checkpoint"]
    assert MANY <= saved["step"] < STEPS
    assert Path(saved["path"]).match(f"guardrun-epoch=*-step={saved['step']}.ckpt")
    end = incident["step"] + FURTHER
    done = go_on(guardrun_starter, [*script, f"--max_steps={end}"], lightning_trainer.CONFIG, incident)
    assert f"Restoring states from the checkpoint path at {saved['path']}" in done.stdout + done.stderr
    lightning_trainer.check_end(done.stdout, guardrun_starter.folder, end)
