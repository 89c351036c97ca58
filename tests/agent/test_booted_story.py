"""The whole story under a booted systemd: a GPU of a run that trains begins to throttle, and what follows from that.

The agent is the real one in its sandbox, the run another user's, the driver's library a stand-in.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.booted import Booted, missing_part
from tests.node.nvml_stub import NvmlStub, build_library
from tests.support.real import find_program
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real("root"), pytest.mark.real("mount"), pytest.mark.real("systemd"), pytest.mark.real("cc")]

GUARDCTL = find_program("guardctl") or "guardctl"
GUARDRUN = find_program("guardrun") or "guardrun"
FOLDER = "/opt/run"
SCRIPT = """
import os, time
from guardrun.hooks import step

with open(f"pid-{os.environ['RANK']}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{os.environ['RANK']}.new", f"pid-{os.environ['RANK']}")
while not os.path.exists("end"):
    time.sleep(0.16 if os.path.exists("hot") else 0.05)
    step()
"""
CONFIG = '[policy.responses]\nthermal_throttle = "isolate"\n'
TRAINED_S = 45.0
"""So long it must have trained for its usual pace to be known (core/steprate.py)."""
AS_A_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-C", FOLDER, "HOME=/opt/run")


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    reason = missing_part()
    if reason:
        pytest.skip(f"real part systemd: {reason}")
    system = Booted(tmp_path_factory.mktemp("booted"))
    try:
        yield system
    finally:
        system.close()


@pytest.fixture
def folder(booted: Booted) -> Path:
    """Where the user trains, seen from here."""
    folder = booted.root / FOLDER[1:]
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "guardrun.toml").write_text(CONFIG)
    booted.run("chown", "-R", "65534:65534", FOLDER)
    return folder


@pytest.fixture
def stub(booted: Booted) -> NvmlStub:
    """Two GPUs, which the agent sees, and the run's own senses do not."""
    library = booted.root / "opt/nvml"
    stub = NvmlStub(build_library(library), library / "answers")
    stub.set(gpus=2)
    drop_in = booted.root / "etc/systemd/system/guardrund.service.d/nvml.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nEnvironment=LD_LIBRARY_PATH=/opt/nvml NVML_STUB_STATE=/opt/nvml/answers\n")
    booted.run(GUARDCTL, "node-agent", "install")
    return stub


@pytest.mark.timeout(400)
def test_a_throttling_gpu_from_its_first_degree_to_the_nodes_release(
    booted: Booted, folder: Path, stub: NvmlStub
) -> None:
    run = booted.start(*AS_A_USER, GUARDRUN, "--nproc_per_node=2", "train.py")
    try:
        pids = [wait_until(lambda r=r: read(folder / f"pid-{r}"), 60, f"rank {r}") for r in range(2)]  # type: ignore[misc]
        for gpu, pid in enumerate(pids):
            stub.set(gpu=gpu, processes=f"{pid}=512000000")
        time.sleep(TRAINED_S)  # the time that it takes to know a run
        stub.set(gpu=1, reasons="hw_slowdown,hw_thermal", temperature=91, sm_clock=990)
        (folder / "hot").touch()
        wait_until(lambda: incident(folder), 120, "the incident", every_s=0.5)
        stub.set(gpu=1, reasons="", temperature=60, sm_clock=1980)
        (folder / "hot").unlink()
        found = wait_until(lambda: (i := incident(folder)).get("recovered") and i, 90, "its end", every_s=0.5)
        (folder / "end").touch()
        assert run.wait(60) == 0
    finally:
        (folder / "end").touch()
        try:
            run.wait(30)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait(10)
    check_incident(found, folder)
    check_history(booted)
    check_quarantine(booted, folder)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def incident(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("guardrun-runs/2*/incidents/*-thermal_throttle/incident.json"))
    return dict(json.loads(paths[0].read_text())) if paths else {}


def check_incident(found: dict[str, Any], folder: Path) -> None:
    assert (found["kind"], found["action"]) == ("slowdown", "isolate_node")
    assert [(culprit["rank"], culprit["gpu"]) for culprit in found["culprits"]] == [(1, 1)]
    (report,) = folder.glob("guardrun-runs/2*/incidents/*-thermal_throttle/report.html")
    page = report.read_text()
    for words in ("Temperature of gpu:", "SM clock of gpu:"):
        assert words in page


def check_history(booted: Booted) -> None:
    """The agent has seen it come and go, knew the job, and wrote who isolated the node."""
    told = json.loads(booted.run(GUARDCTL, "node", "history", "--json").stdout)["entries"]
    entries = [(entry["what"], entry["name"], entry["data"].get("is_over")) for entry in told]
    for wanted in (
        ("job", "registered", None),
        ("finding", "throttle", False),
        ("finding", "throttle", True),
        ("quarantine", "quarantined", None),
    ):
        assert wanted in entries, wanted


def check_quarantine(booted: Booted, folder: Path) -> None:
    """Nobody's next run is started there until somebody releases the node."""
    (folder / "end").touch()
    again = (*AS_A_USER, GUARDRUN, "--nproc_per_node=2", "train.py")
    refused = booted.run(*again, check=False)
    assert refused.returncode == 69
    assert "thermal_throttle" in refused.stderr
    node = booted.run("uname", "-n").stdout.strip()
    booted.run(GUARDCTL, "node", "release", node, "--reason", "fan changed")
    assert booted.run(*again, check=False).returncode == 0
