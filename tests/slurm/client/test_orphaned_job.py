"""A job whose head has died: requeued by another node, or by its batch script, and only where nobody else would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guardrun.slurm.client.commands import Failure, Slurm
from guardrun.slurm.client.jobs import parse_job, read_job
from guardrun.slurm.client.nodes import SlurmNode, read_node
from guardrun.slurm.client.requeue import (
    Fate,
    RequeueState,
    is_reachable,
    judge_fate,
    rescue_job,
    rescue_run,
)
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal import Journal
from tests.engine.conftest import Told
from tests.slurm.client.fake_slurm import JOB, FakeSlurm
from tests.support.real import find_program
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

HEAD = SlurmNode("n1", frozenset({"MIXED"}), "", "", ("main",), "")


@pytest.mark.parametrize(
    ("job", "head", "is_reachable", "fate"),
    [
        ({}, {}, True, Fate.LEAVE),
        ({}, {}, False, Fate.WAIT),
        ({}, {"states": frozenset({"MIXED", "NOT_RESPONDING"})}, False, Fate.WAIT),
        ({}, {"states": frozenset({"DOWN", "NOT_RESPONDING"})}, False, Fate.REQUEUE),
        ({"nodes": ("n2", "n3")}, {}, False, Fate.REQUEUE),
        ({"restarts": 2, "nodes": ("n2",)}, {}, False, Fate.LEAVE),
        ({"state": "COMPLETING", "nodes": ("n2",)}, {}, False, Fate.LEAVE),
    ],
)
def test_what_becomes_of_it(job: dict[str, Any], head: dict[str, Any], is_reachable: bool, fate: Fate) -> None:
    assert judge_fate(parse_job(JOB)._replace(**job), HEAD._replace(**head), 1, is_reachable) is fate


@pytest.mark.parametrize(
    ("scontrol", "pauses"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", 0),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", 1),
    ],
)
def test_a_slurm_that_is_silent_is_asked_again_and_a_job_that_is_gone_is_not(
    fake_slurm: FakeSlurm, scontrol: str, pauses: int
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    slurm = fake_slurm(scontrol=scontrol)
    if not pauses:
        assert rescue_job("5", 0, slurm=slurm, sleep=sleep) is None
        assert slept == []
    else:
        with pytest.raises(KeyboardInterrupt):
            rescue_job("5", 0, slurm=slurm, sleep=sleep)
        given_up = rescue_job("5", 0, slurm=slurm, sleep=sleep, patience_s=0)
        assert given_up is not None and "by hand: scontrol requeue 5" in given_up.text


def test_a_run_is_cut_short_so_often_and_no_more(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    slurm = fake_slurm(scontrol=f'echo "$*" >> {tmp_path}/said; [ $1 = show ] && echo "{JOB}"; true')
    run_dir = tmp_path / "slurm-2_7"
    assert "holds no run" in rescue_run(run_dir, "2_7", 1, slurm, 1e9).text
    run_dir.mkdir()
    (run_dir / "run.json").write_text("{}")
    for number in range(3):
        assert rescue_run(run_dir, "2_7", 1, slurm, 1e9 + number).is_done
    assert (tmp_path / "said").read_text().count("requeue 2_7") == 3
    refused = rescue_run(run_dir, "2_7", 1, slurm, 1e9 + 60)
    assert not refused.is_done and "3 times within an hour" in refused.text
    assert rescue_run(run_dir, "2_7", 1, slurm, 1e9 + 4000).is_done
    (run_dir / "rescues.json").write_text("no json")
    assert rescue_run(run_dir, "2_7", 1, slurm, 1e9).is_done
    (run_dir / "summary.json").write_text("{}")
    assert "an end of its own" in rescue_run(run_dir, "2_7", 1, slurm, 1e9).text
    (run_dir / "summary.json").unlink()
    run_dir.chmod(0o777)
    assert "may be written by anybody (mode 0777): a job" in rescue_run(run_dir, "2_7", 1, slurm, 1e10).text


@pytest.mark.real("slurm")
def test_another_node_requeues_the_job_once_slurm_has_given_the_head_up(slurm_lab: SlurmLab, slurm: Slurm) -> None:
    job = slurm_lab.submit("srun --no-kill sleep 600", "-N3", "--no-kill", "--requeue")
    slurm_lab.wait_state(job, "RUNNING")
    wait_until(lambda: any("sleep 600" in one.command for one in slurm_lab.processes_of("n3")), 20, "the step")
    head = read_node("n1", slurm)
    assert not isinstance(head, Failure) and is_reachable(head)
    assert rescue_job(job, 0, slurm=slurm) is None  # the batch script is there, and decides

    slurm_lab.kill_node("n1")
    looks: list[float] = []

    def until_slurm_knows(seconds: float) -> None:
        looks.append(seconds)
        known = read_job(job, slurm)
        assert not isinstance(known, Failure) and known.restarts == 0
        slurm_lab.run("scontrol", "update", "nodename=n1", "state=down", "reason=does not answer")

    done = rescue_job(job, 0, ["n1"], slurm=slurm, sleep=until_slurm_knows)
    assert done is not None and done.state is RequeueState.DONE and done.excluded == ("n1",)
    assert len(looks) == 1
    assert rescue_job(job, 0, ["n1"], slurm=slurm) is None  # whoever comes later finds it done
    assert slurm_lab.wait_state(job, "RUNNING", timeout_s=60)["NodeList"] == "n[2-4]"


def write_journal(folder: Path) -> Path:
    """Of a run that was about to leave n1 out."""
    told = Told()
    told.fleet_opened(2)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tick()
    journal = Journal(folder)
    for at_s, event, _ in told.journal:
        journal.append(event, [], at_s)
    journal.close()
    return folder / "events.jsonl"


@pytest.mark.real("slurm")
def test_a_batch_script_requeues_a_run_whose_head_was_killed(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long on a busy machine: Slurm starts a job twice."""
    guardctl = find_program("guardctl")
    written = slurm_lab.run(guardctl or "", "sbatch", "--time=10", "--cpus-per-task=1", "--", "train.py", cwd=tmp_path)
    # The first time it is killed while it isolates a node; the second time the run comes to an end, a bad one.
    write_journal(tmp_path)
    stand_in = tmp_path / "guardrun"
    stand_in.write_text(
        f"""#!{sys.executable}
import os, pathlib, signal, sys
run = pathlib.Path("guardrun-runs", f"slurm-{{os.environ['SLURM_JOB_ID']}}")
run.mkdir(parents=True, exist_ok=True)
print("restarts", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
if (run / "run.json").exists():
    (run / "summary.json").write_text("{{}}")
    sys.exit(3)
(run / "run.json").write_text("{{}}")
(run / "events.jsonl").write_bytes(pathlib.Path("events.jsonl").read_bytes())
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    stand_in.chmod(0o755)
    (tmp_path / "guardctl").symlink_to(guardctl or "")
    lines = [f"GUARDRUN={stand_in}" if one.startswith("GUARDRUN=") else one for one in written.stdout.splitlines()]
    (tmp_path / "job.sbatch").write_text("\n".join(lines) + "\n")
    job = slurm_lab.run("sbatch", "--parsable", "job.sbatch", cwd=tmp_path).stdout.strip()
    ended = slurm_lab.wait_state(job, "FAILED", timeout_s=60)
    assert (ended["Restarts"], ended["ExitCode"]) == ("1", "3:0")
    assert (ended["ExcNodeList"], ended["NodeList"]) == ("n1", "n2")
    output = (tmp_path / f"train-{job}.out").read_text()
    assert "restarts 0" in output and "restarts 1" in output
    assert "came to an end of its own" in output
    assert len(json.loads((tmp_path / "guardrun-runs" / f"slurm-{job}" / "rescues.json").read_text())) == 1


def test_outside_of_slurm_there_is_nothing_to_rescue(tmp_path: Path) -> None:
    done = subprocess.run(
        [find_program("guardctl") or "", "slurm", "rescue", "x"],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "guardctl: this is no Slurm job\n")
