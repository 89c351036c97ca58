"""transformers', Lightning's and TRL's trainers, unmodified: resumed, preempted, and saving by themselves in time.

Their ranks are forked from a server that has imported them (training.py), once for all that is here; those of the runs
that are warned import them from their files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_runs.jobs import Job, flags, go
from tests.realworld import huggingface as hf
from tests.realworld import lightning_trainer as lit
from tests.realworld.training import (
    ENVIRONMENT,
    SCRIPTS,
    WAIT_S,
    check_killed_once,
    kill_once,
    start,
    trainers_imported,
)
from tests.support.forkserver.client import Server, forked_by
from tests.support.guardrun_run import Finished, GuardrunStarter
from tests.support.waiting import wait_until

transformers, lightning = pytest.mark.real("transformers"), pytest.mark.real("lightning")

OWN_FLAGS = ["--model_name_or_path=model", "--dataset_name=data", "--bf16=False", "--gradient_checkpointing=False"]
"""Of TRL's script."""
NAMED = ["--guard-run-id=mine"]
MANY_STEPS = 900
"""However fast the machine: not over before the ranks have been asked, have saved and are stopped."""
MANY = 20
"""Steps after which the warning comes."""
FURTHER = 60
"""Steps beyond where the ranks were last seen before they were stopped."""
AT, NEXT = 9, 11
FAULTS = f"kill@{AT}:0,stop@{NEXT}:1"
"""Of the first attempt, and of the second."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with trainers_imported(tmp_path_factory.mktemp("hf")) as one:
        yield one


@transformers
def test_transformers_resumes_from_the_newest_whole_one(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """The newest one is cut short, as by a full disk, right before a rank is killed: skipped, named, left alone."""
    out = guardrun_starter.folder / "out"
    torn, whole = hf.checkpoint(out, 3 * hf.EVERY), hf.checkpoint(out, 2 * hf.EVERY)
    run = start(guardrun_starter, [str(SCRIPTS / "trainer.py"), *hf.FLAGS], hf.CONFIG, server=server)
    kill_once(run, lambda: hf.is_written(torn), before=lambda: os.truncate(torn / "optimizer.pt", 1000))
    done, incident = check_killed_once(run)
    assert incident["resumed_from"] == {"path": str(whole), "step": 2 * hf.EVERY}
    [skipped] = incident["evidence"]["skipped_checkpoints"]
    assert skipped["path"] == str(torn) and "optimizer.pt" in skipped["reason"]
    assert f"skipped checkpoint {torn}" in done.stderr
    hf.check_history(hf.checkpoint(out, hf.STEPS))


@pytest.mark.real("trl")
def test_sft_goes_on_after_a_rank_was_killed(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """By TRL's own script for supervised fine-tuning, as it lies in the package: nobody here wrote it."""
    prepare = [sys.executable, str(SCRIPTS / "prepare.py"), str(guardrun_starter.folder)]
    with forked_by(server):
        subprocess.run(prepare, check=True, capture_output=True, timeout=60)
    out = guardrun_starter.folder / "out"
    run = start(guardrun_starter, ["-m", "trl.scripts.sft", *hf.FLAGS, *OWN_FLAGS], hf.IN_TIME, server=server)
    kill_once(run, lambda: hf.is_written(hf.checkpoint(out, 2 * hf.EVERY)))
    done, incident = check_killed_once(run)
    step, jit = incident["resumed_from"]["step"], incident["evidence"]["jit"]
    assert step >= 2 * hf.EVERY and incident["resumed_from"]["path"] == str(hf.checkpoint(out, step))
    if "why" in jit:  # between a step and the next one, it logs; and it still saves, or its own save is there already
        whys = ("its Trainer ", "is there already", "rank 0 is saving by itself")
        assert any(why in jit["why"] for why in whys) and step % hf.EVERY == 0, jit
    else:
        assert (jit["rank"], jit["step"]) == (0, step), jit
    hf.check_history(hf.checkpoint(out, hf.STEPS))
    assert "Training completed." in done.stdout
    assert (out / "model.safetensors").is_file()


@lightning
def test_lightning_fit_goes_on_after_a_rank_was_killed(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """With last.ckpt beside: the same checkpoint twice, and either will do."""
    folder = guardrun_starter.folder
    run = start(guardrun_starter, [*lit.FLAGS, "--save_last"], lit.CONFIG, server=server)
    kill_once(run, lit.checkpoint(folder, 2 * lit.EVERY).exists)
    done, incident = check_killed_once(run)
    resumed = incident["resumed_from"]
    assert resumed["step"] >= lit.EVERY and resumed["step"] % lit.EVERY == 0
    assert resumed["path"] in (
        str(lit.checkpoint(folder, resumed["step"])),
        str(folder / "checkpoints" / "last.ckpt"),
    )
    assert f"Restoring states from the checkpoint path at {resumed['path']}" in done.stdout + done.stderr
    lit.check_end(done.stdout, folder)


@lightning
def test_a_checkpoint_of_lightning_s_that_is_cut_short_is_passed_over(
    server: Server, guardrun_starter: GuardrunStarter
) -> None:
    folder = guardrun_starter.folder
    torn, whole = (
        lit.checkpoint(folder, 3 * lit.EVERY),
        lit.checkpoint(folder, 2 * lit.EVERY),
    )
    run = start(guardrun_starter, lit.FLAGS, lit.CONFIG, server=server)
    kill_once(run, lambda: zipfile.is_zipfile(torn), before=lambda: os.truncate(torn, 5000))
    done, incident = check_killed_once(run)
    assert incident["resumed_from"] == {"path": str(whole), "step": 2 * lit.EVERY}
    assert [skipped["path"] for skipped in incident["evidence"]["skipped_checkpoints"]] == [str(torn)]
    lit.check_end(done.stdout, folder)


def numbers(states: dict[str, Any]) -> list[Any]:
    """What is logged, but for times, and the average loss since this process was started."""
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second", "train_loss"))}
        for entry in states["log_history"]
    ]
    return [*history, states["total_flos"], states["global_step"]]


@transformers
@pytest.mark.real("netns")
def test_transformers_on_two_nodes_saves_in_time(server: Server, guardrun_starter: GuardrunStarter, job: Job) -> None:
    """Its model drops out: random states count, of both nodes."""
    options = ["--output_dir=out", "--max_steps=16", "--save_strategy=steps", "--save_steps=6", "--save_total_limit=2"]
    options += ["--eval_strategy=steps", "--eval_steps=4", "--gradient_accumulation_steps=2"]
    script = [str(SCRIPTS / "trainer.py"), *options, *hf.FLAGS[4:]]
    undisturbed = start(guardrun_starter, [str(SCRIPTS / "fault.py"), "", *script], hf.IN_TIME, server=server)

    job.script = SCRIPTS / "fault.py"
    (job.folder / "guardrun.toml").write_text(hf.IN_TIME)
    for number, name in enumerate(("head", "node1")):
        env = {**ENVIRONMENT, "HF_HOME": str(job.folder / "hf")}
        with forked_by(server):
            job.start_one(name, *flags(number), script_args=["kill@9:0,stop@11:1", *script], env=env)
    for attempt in range(2):
        go(job, attempt)
    assert set(job.ended(240.0).values()) == {0}, job.outputs()
    out = job.folder / "out"
    for incident, rank, step in zip(job.incidents(), (1, 0), (8, 10), strict=True):
        jit: dict[str, Any] = incident["evidence"]["jit"]
        told = {"rank": rank, "step": step, "path": str(out / f"checkpoint-{step}")}
        assert jit.items() >= told.items() and "unchecked" not in jit, (jit, job.outputs())
        assert incident["resumed_from"] == {"path": jit["path"], "step": step}
    assert not list(out.glob("_guardrun*"))

    done, other = undisturbed.wait(240), guardrun_starter.folder / "out"
    assert done.returncode == 0 and done.incidents == [] and "just-in-time" not in done.stderr, done
    states, expected = (json.loads((folder / "trainer_state.json").read_text()) for folder in (out, other))
    assert numbers(states) == numbers(expected)
    assert (out / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def train(server: Server, starter: GuardrunStarter, faults: str, script: list[str], config: str) -> Finished:
    run = start(starter, [str(SCRIPTS / "fault.py"), faults, *script], config, server=server)
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


@lightning
def test_lightning_saves_in_time(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """Long on a busy machine: four attempts."""
    script = [str(SCRIPTS / "lit_steps.py")]
    done = train(server, guardrun_starter, FAULTS, script, lit.IN_TIME)
    names = [f"guardrun-epoch=0-step={step}.ckpt" for step in (AT - 1, NEXT - 1)]
    check_saved(done, names, guardrun_starter.folder / "out")
    undisturbed = train(server, guardrun_starter, "", script, lit.IN_TIME)
    [weights] = [line for line in undisturbed.stdout.splitlines() if line.startswith("weights ")]
    assert weights in done.stdout.splitlines()


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


def go_on(
    server: Server, starter: GuardrunStarter, script: list[str], config: str, incident: dict[str, Any]
) -> Finished:
    """The same run again, to a nearer end."""
    done = start(starter, script, config, NAMED, server).wait(WAIT_S)
    assert done.returncode == 0, done
    [told] = done.incidents
    assert told["resumed_from"] == incident["evidence"]["checkpoint"] and told["recovered"] is not None
    return done


@transformers
def test_transformers_is_preempted(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """Long: transformers is imported by each rank of the first run."""
    out = guardrun_starter.folder / "out"
    # Of its own accord it would save at the end alone.
    script = [str(SCRIPTS / "trainer.py"), *hf.FLAGS, "--save_steps=1000"]
    incident = warn(guardrun_starter, [*script, f"--max_steps={MANY_STEPS}"], hf.CONFIG)
    saved = incident["evidence"]["checkpoint"]
    assert MANY <= saved["step"] < MANY_STEPS
    assert saved["path"] == str(hf.checkpoint(out, saved["step"]))
    end = incident["step"] + FURTHER
    go_on(server, guardrun_starter, [*script, f"--max_steps={end}"], hf.CONFIG, incident)
    hf.check_history(hf.checkpoint(out, end), end)


@lightning
def test_lightning_is_preempted(server: Server, guardrun_starter: GuardrunStarter) -> None:
    """Long: Lightning is imported by each rank of the first run."""
    script = [str(SCRIPTS / "lit.py"), "--every=1000"]
    incident = warn(guardrun_starter, [*script, f"--max_steps={MANY_STEPS}"], lit.CONFIG)
    saved = incident["evidence"]["checkpoint"]
    assert MANY <= saved["step"] < MANY_STEPS
    assert Path(saved["path"]).match(f"guardrun-epoch=*-step={saved['step']}.ckpt")
    end = incident["step"] + FURTHER
    done = go_on(server, guardrun_starter, [*script, f"--max_steps={end}"], lit.CONFIG, incident)
    assert f"Restoring states from the checkpoint path at {saved['path']}" in done.stdout + done.stderr
    lit.check_end(done.stdout, guardrun_starter.folder, end)
