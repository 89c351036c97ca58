"""A device that throttles while a run trains on it, where no node agent is: told, tied to the steps, and refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import EdgeRuns, check_show, finish, journal_of
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support.guardrun_run import GuardrunRun, clean_environment
from tests.support.throttling import CAUSE, CONFIG, REFUSED, check_incident, give_gpus, throttle
from tests.support.waiting import wait_until

NODE = "node-a"
SCRIPT = """
import os, time
from guardrun.hooks import step

open(f"pid-{os.environ['RANK']}.new", "w").write(str(os.getpid()))
os.rename(f"pid-{os.environ['RANK']}.new", f"pid-{os.environ['RANK']}")
while not os.path.exists("end"):
    time.sleep(0.9 if os.path.exists("hot") else 0.3)
    step()
"""


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    stub = NvmlStub(build_library(tmp_path / "nvml"), tmp_path / "readings")
    stub.set(gpus=2)
    return stub


def environment(stub: NvmlStub, folder: Path) -> dict[str, str | None]:
    own = {"SLURMD_NODENAME": NODE, "GUARDRUN_NODE_STATE_DIR": str(folder / "state")}
    return {**stub.variables, **own, "GUARDRUN_AGENT_SOCKET": str(folder / "no-agent.sock")}


def incident_of(run: GuardrunRun) -> dict[str, Any]:
    return next((incident for incident in run.incidents() if incident["cause"] == CAUSE), {})


@contextmanager
def hot(folder: Path) -> Iterator[None]:
    (folder / "hot").touch()
    yield
    (folder / "hot").unlink()


@pytest.mark.real("cc")
def test_a_throttling_device_is_told_quarantined_and_released(edge: EdgeRuns, stub: NvmlStub) -> None:
    """Long: a device throttles until it is believed, and is cool again until that is."""
    script, env = edge.folder / "train.py", environment(stub, edge.folder)
    script.write_text(SCRIPT)
    run = edge.start(str(script), config=CONFIG, env=env)
    give_gpus(stub, [int(wait_until(lambda r=r: _read(edge.folder / f"pid-{r}"), 60, f"rank {r}")) for r in range(2)])  # type: ignore[misc]
    wait_until(lambda: '"milestones"' in journal_of(run), 60, "the first steps")
    incident = throttle(stub, hot(edge.folder), lambda: incident_of(run))
    (edge.folder / "end").touch()
    finished = finish(run)
    assert finished.run_dir is not None
    check_incident(incident, finished.run_dir)
    assert re.match(rf"Rank 1 on {NODE}: GPU 1 .*; steps have taken [2-4]\.\d times as long", incident["summary"])
    check_show("heat", finished, incident["id"])
    assert finished.returncode == 0 and "is put under quarantine: training goes on" in finished.stderr
    check_quarantine(edge, env)


def check_quarantine(edge: EdgeRuns, env: dict[str, str | None]) -> None:
    """The next run is refused until somebody releases the node."""
    (edge.folder / "end").unlink()
    refused = edge.start(str(edge.folder / "train.py"), env=env).wait(60)
    assert refused.returncode == REFUSED
    assert f"node {NODE} is quarantined since" in refused.stderr and CAUSE in refused.stderr
    guardctl = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "node"]
    own = clean_environment("guardctl", env)
    shown = subprocess.run(
        [*guardctl, "list", "--json"], env=own, capture_output=True, text=True, check=True, timeout=60
    )
    assert NODE in json.dumps(json.loads(shown.stdout))
    subprocess.run([*guardctl, "release", NODE], env=own, capture_output=True, check=True, timeout=60)
    (edge.folder / "end").touch()
    assert edge.run(str(edge.folder / "train.py"), env=env).returncode == 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
