"""Node order in a Slurm that knows its switches: its list is sorted by name, the ranks are by switch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurmlab import SlurmLab
from tests.support.slurmlab_conf import LabSettings

pytestmark = pytest.mark.real("slurm")

TREE = "SwitchName=s0 Nodes=n1,n3\nSwitchName=s1 Nodes=n2,n4\nSwitchName=top Switches=s0,s1\n"
SCRIPT = """
import glob, os, time
print("rank", os.environ["RANK"], "on", os.environ["SLURMD_NODENAME"], flush=True)
joined = '"type":"node_joined","node":"n4"'
deadline = time.monotonic() + 60
while not any(joined in open(path).read() for path in glob.glob("guardrun-runs/*/events.jsonl")):
    assert time.monotonic() < deadline, "the spare has not joined"
    time.sleep(0.1)
"""


@pytest.fixture
def tree_lab() -> Iterator[SlurmLab]:
    lab = SlurmLab(LabSettings(nodes=4, topology=TREE))
    try:
        yield lab
    finally:
        lab.close()


def test_ranks_are_numbered_switch_by_switch(tree_lab: SlurmLab, tmp_path: Path) -> None:
    """Long on a busy machine: four launchers import torch."""
    (tmp_path / "say.py").write_text(SCRIPT)
    command = (tree_lab.programs / "guardrun", "--guard-spares=1", "--nproc-per-node=1", "say.py")
    done = tree_lab.run("srun", "-N4", *command, cwd=tmp_path, timeout_s=90)
    said = dict(re.findall(r"rank (\d) on (n\d)", done.stdout))
    assert said == {"0": "n1", "1": "n3", "2": "n2"}, done
