"""The demo's training under a booted systemd: a GPU of rank 1 begins to throttle, and what follows from that.

The agent is the real one in its sandbox, the run another user's, the driver's library a stand-in. Rank 1 slows down as
a device that throttles does: what it may compute on is cut to a third, and rank 0 waits for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.systemd.booted import ROOT, Booted, missing_part
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support.cpugroup import CpuGroup, cpu_group
from tests.support.processes import marked, read_process
from tests.support.real import find_program
from tests.support.throttling import CAUSE, CONFIG, REFUSED, check_incident, give_gpus, throttle
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real(part) for part in ("root", "mount", "systemd", "cc", "cpu-quota")]

GUARDCTL = find_program("guardctl") or "guardctl"
GUARDRUN = find_program("guardrun") or "guardrun"
FOLDER = "/opt/run"
DEMO = ROOT / "examples/demo"
WHOLE_SHARE, THROTTLED_SHARE = 0.045, 0.015
"""Of a CPU, for each rank: what is left is for the machine's other work, which so has no part in the run's pace."""
AS_A_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-C", FOLDER, "HOME=/opt/run")
# As the demo has it, but for the hang that it plants.
SMALL = ("--batch-size=2", "--context=32", "--layers=1", "--width=32")
TRAIN = (*AS_A_USER, GUARDRUN, "--nproc_per_node=2", "train.py", "--update-at=0", *SMALL)
NEXT = (*AS_A_USER, GUARDRUN, "--nproc_per_node=1", "--no-python", "true")
"""Whatever anybody starts there afterwards."""


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
    shutil.copy(DEMO / "train.py", folder)
    (folder / "guardrun.toml").write_text((DEMO / "guardrun.toml").read_text() + CONFIG)
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


@pytest.fixture
def devices() -> Iterator[list[CpuGroup]]:
    """What each rank computes on."""
    with ExitStack() as stack:
        yield [stack.enter_context(cpu_group(f"device-{rank}", WHOLE_SHARE)) for rank in range(2)]


@pytest.mark.timeout(400)
def test_a_throttling_gpu_from_its_first_degree_to_the_nodes_release(
    booted: Booted, folder: Path, stub: NvmlStub, devices: list[CpuGroup]
) -> None:
    """Long: a machine is booted, and a device throttles for as long as it takes to be believed."""
    run = booted.start(*TRAIN, "--steps=100000")
    launcher = 0
    try:
        wait_until((folder / "out/metrics.jsonl").exists, 90, "training", every_s=0.2)
        pids = [rank_pids(booted, rank) for rank in range(2)]
        launcher = parent_of(pids[0][0])
        for device, (pid, _) in zip(devices, pids, strict=True):
            device.put(pid)
        give_gpus(stub, [inner for _, inner in pids])
        found = throttle(stub, throttled(devices[1]), lambda: incident(folder))
        assert run.poll() is None, "a quarantine ends no training"
    finally:
        stop(run, launcher)
    (run_dir,) = folder.glob("guardrun-runs/2*")
    check_incident(found, run_dir)
    check_history(booted)
    check_quarantine(booted)


def rank_pids(booted: Booted, rank: int) -> tuple[int, int]:
    """A rank's pid here, and the one that it has in there."""
    inside = os.readlink(f"/proc/{booted.init}/ns/pid")
    for process in marked("RANK", str(rank)):
        if "train.py" in process.command and os.readlink(f"/proc/{process.pid}/ns/pid") == inside:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return process.pid, int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])
    raise AssertionError(f"no rank {rank}")


@contextmanager
def throttled(device: CpuGroup) -> Iterator[None]:
    device.limit(THROTTLED_SHARE)
    yield
    device.limit(WHOLE_SHARE)


def parent_of(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.ppid


def stop(run: subprocess.Popen[bytes], launcher: int) -> None:
    """As a person would."""
    if launcher:
        os.kill(launcher, signal.SIGTERM)
    try:
        assert run.wait(120) == 143
    finally:
        run.kill()
        run.wait(10)


def incident(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob(f"guardrun-runs/2*/incidents/*-{CAUSE}/incident.json"))
    return dict(json.loads(paths[0].read_text())) if paths else {}


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


def check_quarantine(booted: Booted) -> None:
    """Nobody's next run is started there until somebody releases the node."""
    refused = booted.run(*NEXT, check=False)
    assert refused.returncode == REFUSED
    assert CAUSE in refused.stderr
    node = booted.run("uname", "-n").stdout.strip()
    booted.run(GUARDCTL, "node", "release", node, "--reason", "fan changed")
    assert booted.run(*NEXT, check=False).returncode == 0
