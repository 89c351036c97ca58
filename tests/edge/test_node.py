"""A device that throttles while a run trains on it: told, tied to the steps, quarantined, refused, released."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.edge.runs import EdgeRuns, finish, ranks_of
from tests.node.nvml_stub import NvmlStub, build_library
from tests.support.guardrun_run import GuardrunRun, clean_environment
from tests.support.waiting import wait_until

NODE = "node-a"
SCRIPT = """
import os, time
import torch
from guardrun.hooks import step

open(f"pid-{os.environ['RANK']}.new", "w").write(str(os.getpid()))
os.rename(f"pid-{os.environ['RANK']}.new", f"pid-{os.environ['RANK']}")
while not os.path.exists("end"):
    time.sleep(0.16 if os.path.exists("hot") else 0.05)
    step()
"""
CONFIG = '[policy.responses]\nthermal_throttle = "isolate"\n'
TRAINED_S = 45.0
"""So long it must have trained for its usual pace to be known: ten seconds of warm-up, three windows of ten."""


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    stub = NvmlStub(build_library(tmp_path / "nvml"), tmp_path / "readings")
    stub.set(gpus=2)
    return stub


def environment(stub: NvmlStub, folder: Path) -> dict[str, str | None]:
    own = {"SLURMD_NODENAME": NODE, "GUARDRUN_NODE_STATE_DIR": str(folder / "state")}
    return {**stub.variables, **own, "GUARDRUN_AGENT_SOCKET": str(folder / "no-agent.sock")}


def incident_of(run: GuardrunRun, cause: str) -> dict[str, object]:
    found = [incident for incident in run.incidents() if incident["cause"] == cause]
    return found[0] if found else {}


@pytest.mark.real("cc")
@pytest.mark.timeout(300)
def test_a_throttling_device_is_told_quarantined_and_released(edge: EdgeRuns, stub: NvmlStub) -> None:
    """By the supervisor's own senses: there is no node agent here."""
    script, env = edge.folder / "train.py", environment(stub, edge.folder)
    script.write_text(SCRIPT)
    run = edge.start(str(script), config=CONFIG, env=env)
    pids = [int(wait_until(lambda r=r: _read(edge.folder / f"pid-{r}"), 60, f"rank {r}")) for r in range(2)]  # type: ignore[misc]
    for gpu, pid in enumerate(pids):
        stub.set(gpu=gpu, processes=f"{pid}=512000000")
    time.sleep(TRAINED_S)  # the time that it takes to know a run
    began_s = time.monotonic()
    stub.set(gpu=1, reasons="hw_slowdown,hw_thermal", temperature=91, sm_clock=990)
    (edge.folder / "hot").touch()
    wait_until(lambda: incident_of(run, "thermal_throttle"), 90, "the incident")
    assert time.monotonic() - began_s < 75
    stub.set(gpu=1, reasons="", temperature=60, sm_clock=1980)
    (edge.folder / "hot").unlink()
    incident = wait_until(lambda: (i := incident_of(run, "thermal_throttle")).get("recovered") and i, 60, "its end")
    (edge.folder / "end").touch()
    finished = finish(run)
    check_incident(incident, finished.run_dir)
    assert finished.returncode == 0 and "is put under quarantine: training goes on" in finished.stderr
    check_quarantine(edge, env)


def check_incident(incident: dict[str, object], run_dir: Path | None) -> None:
    assert (incident["kind"], incident["action"], ranks_of(incident)) == ("slowdown", "isolate_node", [1])
    assert incident["culprits"][0]["gpu"] == 1  # type: ignore[index]
    assert re.match(rf"Rank 1 on {NODE}: GPU 1 .*; steps have taken [2-4]\.\d times as long", str(incident["summary"]))
    assert run_dir is not None
    page = (run_dir / "incidents" / "001-thermal_throttle" / "report.html").read_text()
    for words in ("Temperature of gpu:", "SM clock of gpu:", "990 MHz to 1,980 MHz"):
        assert words in page


def check_quarantine(edge: EdgeRuns, env: dict[str, str | None]) -> None:
    """The next run is refused until somebody releases the node."""
    (edge.folder / "end").unlink()
    refused = edge.start(str(edge.folder / "train.py"), env=env).wait(60)
    assert refused.returncode == 69
    assert f"node {NODE} is quarantined since" in refused.stderr and "thermal_throttle" in refused.stderr
    guardctl = [sys.executable, "-m", "guardrun.supervisor.guardctl", "node"]
    own = clean_environment("guardctl", env)
    shown = subprocess.run(
        [*guardctl, "list", "--json"], env=own, capture_output=True, text=True, check=True, timeout=30
    )
    assert NODE in json.dumps(json.loads(shown.stdout))
    subprocess.run([*guardctl, "release", NODE], env=own, capture_output=True, check=True, timeout=30)
    (edge.folder / "end").touch()
    assert edge.run(str(edge.folder / "train.py"), env=env).returncode == 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
