"""Ranks of two nodes that are killed in the middle of an epoch: each sample comes once, whichever node it was on."""

from __future__ import annotations

import pytest

from tests.fleet_runs.jobs import QUICK, Job
from tests.runs.runs import SCRIPTS
from tests.runs.samples import trained, undisturbed

pytestmark = pytest.mark.real("netns")

SAMPLES, EPOCHS = 120, 3
KILLS = {5: 1, 13: 0, 22: 1, 33: 0}
"""By step: the rank. The last attempt but one has a function for save_with()."""
EXACT = QUICK.replace('resume_args = ["--resume", "{path}"]\n', "exact_data = true\n")


def test_each_sample_comes_once_on_both_nodes(job: Job) -> None:
    """Long: five starts of two nodes."""
    job.script = SCRIPTS / "once.py"
    kills = ",".join(f"{step}:{rank}" for step, rank in KILLS.items())
    arguments = (f"--samples={SAMPLES}", f"--epochs={EPOCHS}", f"--kills={kills}", "--workers=0,1")
    job.start(2, ["head", "node1"], config=EXACT, script_args=arguments)
    assert job.ended() == {"head": 0, "node1": 0}, job.outputs()
    for rank in (0, 1):
        assert trained(job.folder, rank) == undisturbed(rank, SAMPLES, EPOCHS)
    told = [one["data_replay"]["status"] for one in job.summary()["attempts"] if "data_replay" in one]
    assert told == ["skipped"] * len(KILLS), job.outputs()
    assert job.incidents()[-1]["evidence"]["jit"]["step"] == max(KILLS)
