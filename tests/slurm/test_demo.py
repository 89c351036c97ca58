"""The demo as a job of three nodes and a spare: one goes dark in mid-run, is drained, replaced, and training ends."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo"
GUARDRUN = Path(sys.executable).with_name("guardrun")
GUARDCTL = Path(sys.executable).with_name("guardctl")
STEPS = 60
DARK_AT = 25
QUICKER = {"GUARDRUN_FLEET_LOST_S": "10", "GUARDRUN_FLEET_TERM_S": "6"}
"""The time that a switch needs to fail over is no part of this story."""


def read_incidents(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(run_dir.glob("incidents/*/incident.json"))]


def last_step(folder: Path) -> int:
    metrics = folder / "out" / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


@pytest.mark.timeout(300)
def test_a_node_goes_dark_and_the_spare_takes_over(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    for name in ("train.py", "guardrun.toml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    environment = {**QUICKER, "PATH": f"{GUARDRUN.parent}:/usr/bin:/bin"}
    written = slurm_lab.run(
        *(
            GUARDCTL,
            "sbatch",
            "--json",
            "--nodes=3",
            "--spares=1",
            "--nproc-per-node=1",
            "--cpus-per-task=1",
            "--submit",
        ),
        *("--", "train.py", f"--steps={STEPS}", "--save-every=10", "--update-at=0", "--batch-size=4", "--width=32"),
        env=environment,
        cwd=tmp_path,
    )
    job = str(json.loads(written.stdout)["job"])
    try:
        wait_until(lambda: last_step(tmp_path) >= DARK_AT, 120, "training on three nodes", every_s=0.2)
        slurm_lab.stop_node("n2")
        slurm_lab.wait_state(job, "COMPLETED", timeout_s=150)
    except BaseException:
        print(*(path.read_text() for path in tmp_path.glob("*.out")))
        raise
    output = "\n".join(path.read_text() for path in tmp_path.glob("*.out"))
    [run_dir] = [path for path in (tmp_path / "guardrun-runs").iterdir() if path.name == f"slurm-{job}"]

    [incident] = read_incidents(run_dir)
    assert (incident["kind"], incident["cause"], incident["action"]) == ("node", "node_lost", "isolate_node")
    assert incident["culprits"] == [{**incident["culprits"][0], "rank": 1, "node": "n2"}]
    assert incident["recovered"] is not None
    reason = slurm_lab.node("n2")["Reason"]
    assert reason.startswith(f"guardrun: slurm-{job} incident 001 node_lost") and "n2" in reason
    assert "DRAIN" in slurm_lab.node("n2")["State"]

    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["outcome"], summary["restarts"], summary["last_step"]) == ("finished", 1, STEPS)
    assert re.search(r"without n2 and with n4", output), output
    # Where it stood, and where it went on from: nothing but what came after the last whole checkpoint was done twice.
    assert incident["resumed_from"]["step"] >= DARK_AT - 15
