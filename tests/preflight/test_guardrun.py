"""The pre-flight of the real guardrun: what it says, what it stops, what it leaves, and that nobody waits for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from guardrun.launcher.run.preflight import CODE, is_off
from guardrun.supervisor.preflight.base.remark import Assignment, Subject
from tests.sensors.nvml_stub import NvmlStub
from tests.support.deadmount import dead_mount
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

Run = Callable[..., Finished]
ON = {"GUARDRUN_PREFLIGHT_LEVEL": None}
SCRIPT = "import time; time.sleep({}); print('trained')"
PRE_FLIGHT_S = 240.0
"""For a word of the pre-flight on a busy machine: it is nice to everybody else."""
UNHURRIED = """
import sys
from guardrun.launcher.main import main
from guardrun.launcher.run import preflight
preflight.QUICK_WAIT_S = 240.0
preflight.CODE = preflight.CODE.removesuffix("leave()") + (
    "from guardrun.supervisor.preflight.base import remark; remark.run_checks.__defaults__ = (240.0,); "
    "from guardrun.supervisor.preflight.checks import gpus; gpus.PATIENCE_S = 120.0; leave()"
)
sys.exit(main())
"""
"""A guardrun that waits for what its pre-flight finds, where a busy machine needs longer than a start may take."""
WAITS = "import os, time\nwhile not os.path.exists('end'): time.sleep(0.02)\nprint('trained')"


def said(done: Finished) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("guardrun: pre-flight:")]


def read_record(run: GuardrunRun) -> str:
    path = run.run_dir / "preflight.json" if run.run_dir else None
    return path.read_text() if path and path.exists() else ""


@pytest.mark.parametrize(
    ("arguments", "variable", "is_plain"),
    [
        ([], None, False),
        ([], "off", True),
        (["--guard-preflight=off"], None, True),
        (["--guard-preflight", "off"], None, True),
        (["--guard-preflight=full"], "off", False),
        (["--guard-preflight=off", "--guard-preflight=quick"], None, False),
        (["--guard-preflight"], None, False),
    ],
)
def test_when_none_is_started(arguments: list[str], variable: str | None, is_plain: bool) -> None:
    assert is_off(arguments, variable) is is_plain


def test_a_healthy_node_is_recorded_and_not_talked_about(
    start_guardrun: Callable[..., GuardrunRun], tmp_path: Path
) -> None:
    run = start_guardrun(["--nproc-per-node=1"], script=WAITS, env=ON)
    data = json.loads(wait_until(lambda: read_record(run), PRE_FLIGHT_S, "preflight.json"))
    (tmp_path / "end").touch()
    assert data["level"] == "quick"
    assert {one["check"] for one in data["remarks"]} >= {"gpus", "versions", "limits", "folders", "shm", "clock"}
    assert "quarantine" not in {one["check"] for one in data["remarks"]}, "guardrun has asked that itself"
    done = run.wait()
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    warned = [one for one in data["remarks"] if one["severity"] == "warn"]
    assert said(done) == [f"guardrun: pre-flight: {one['summary']} {one['advice']}" for one in warned]
    assert run.alive() == []


def test_a_guardrun_that_has_gone_on_by_then_has_its_record_all_the_same(tmp_path: Path) -> None:
    """It waits a tenth of a second; a check of a mount or a driver may take two."""
    subject = Subject(node="here", cwd=str(tmp_path), environ={})
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    for end in (reader, writer):
        os.close(end)
    assignment = msgspec.json.encode(Assignment(level="quick", subject=subject)).decode()
    _, said = child.communicate(f"{assignment}\n{tmp_path}\n")
    assert child.returncode == 0, said
    assert json.loads((tmp_path / "preflight.json").read_text())["level"] == "quick"


def test_a_warning_is_said_and_the_run_goes_on(start_guardrun: Callable[..., GuardrunRun], tmp_path: Path) -> None:
    run = start_guardrun(["--nproc-per-node=1"], script=WAITS, env={**ON, "NCCL_SOCKET_IFNAME": "nosuch"})
    run.wait_for_output("NCCL_SOCKET_IFNAME=nosuch leaves nothing on this node", PRE_FLIGHT_S)
    (tmp_path / "end").touch()
    done = run.wait()
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert any("NCCL_SOCKET_IFNAME=nosuch leaves nothing on this node" in line for line in said(done))


def test_a_port_in_use_is_refused_before_anything_is_there(run_guardrun: Run) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        port = one.getsockname()[1]
        flags = [f"--master-port={port}", "--nproc-per-node=1"]
        done = run_guardrun(flags, script=SCRIPT.format(0), env=ON)
        assert (done.returncode, done.stdout, done.run_dir) == (71, "", None), done
        assert f"guardrun: refused: Master port {port} is in use" in done.stderr
        assert "--guard-preflight=off" in done.stderr and "Traceback" not in done.stderr
    done = run_guardrun([f"--master-port={free_ports(1)[0]}", "--nproc-per-node=1"], script=SCRIPT.format(0), env=ON)
    assert done.returncode == 0, done


@pytest.mark.real("cc")
def test_a_lost_gpu_is_refused_and_off_runs_all_the_same(
    run_guardrun: Run, nvml_stub: NvmlStub, tmp_path: Path
) -> None:
    """Long on a busy machine: a refused start, and a whole one."""
    nvml_stub.set(gpu=0, lost=1)
    variables = nvml_stub.variables
    starter = GuardrunStarter(tmp_path, [sys.executable, "-c", UNHURRIED])
    try:
        done = starter.run(["--nproc-per-node=1"], script=SCRIPT.format(0), env={**ON, **variables})
    finally:
        starter.close()
    assert (done.returncode, done.stdout, done.run_dir) == (71, "", None), done
    assert ("guardrun: refused: " in done.stderr and "Reboot the node" in done.stderr) or "Reset it" in done.stderr
    flags = ["--guard-preflight=off", "--nproc-per-node=1"]
    done = run_guardrun(flags, script=SCRIPT.format(0), env={**ON, **variables})
    assert (done.returncode, done.stdout, said(done)) == (0, "trained\n", []), done
    assert done.run_dir is not None and not (done.run_dir / "preflight.json").exists()


def test_off_by_configuration(run_guardrun: Run) -> None:
    config = '[preflight]\nlevel = "off"\n'
    done = run_guardrun(
        ["--nproc-per-node=1"], script=SCRIPT.format(2), config=config, env={**ON, "NCCL_SOCKET_IFNAME": "nosuch"}
    )
    assert (done.returncode, said(done)) == (0, []), done


def test_torchrun_itself_looks_at_nothing(run_guardrun: Run) -> None:
    env = {**ON, "NCCL_SOCKET_IFNAME": "nosuch"}
    done = run_guardrun(["--guard-off", "--nproc-per-node=1"], script=SCRIPT.format(2), env=env)
    assert (done.returncode, said(done)) == (0, []), done


def test_a_level_that_is_none(run_guardrun: Run) -> None:
    done = run_guardrun(["--guard-preflight=thorough", "--nproc-per-node=1"], script=SCRIPT.format(0))
    assert done.returncode == 2 and '"off" or "quick" or "full"' in done.stderr, done


def test_full_tries_the_devices_before_the_first_attempt(run_guardrun: Run, tmp_path: Path) -> None:
    """Long on a busy machine: the devices' processes import torch."""
    env = {**ON, "GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state")}
    done = run_guardrun(
        ["--guard-preflight=full", "--nproc-per-node=1"], script=SCRIPT.format(2), env=env, timeout_s=240
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done
    assert "trying the devices" in done.stderr
    assert (tmp_path / "state" / "bandwidth.json").is_file()


@pytest.mark.cold
def test_ctrl_c_ends_the_trial(start_guardrun: Callable[..., GuardrunRun], tmp_path: Path) -> None:
    env = {**ON, "GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state")}
    run = start_guardrun(["--guard-preflight=full", "--nproc-per-node=1"], script=SCRIPT.format(0), env=env)
    wait_until(lambda: run.find("launcher.device_trial"), 60, "the devices' processes")
    run.send(signal.SIGINT)
    done = run.wait(60)
    assert (done.returncode, done.stdout, done.run_dir) == (130, "", None), done
    wait_until(lambda: not run.alive(), 30, "the end of what was started")  # it imports torch first


def test_a_run_shorter_than_its_pre_flight_leaves_nothing(start_guardrun: Callable[..., GuardrunRun]) -> None:
    run = start_guardrun(["--no-python", "--nproc-per-node=1", "true"], env=ON)
    assert run.wait().returncode == 0
    assert run.alive() == []


@pytest.mark.real("fuse")
def test_a_run_waits_for_no_dead_mount_and_leaves_no_process(
    start_guardrun: Callable[..., GuardrunRun], tmp_path: Path
) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        config = f'[checkpoint]\ndir = "{folder}/out"\n'
        run = start_guardrun(["--nproc-per-node=1"], script=WAITS, config=config, env=ON)
        run.wait_for_output("does not answer: whatever touches it hangs", PRE_FLIGHT_S)
        assert run.find("train.py"), "it has not waited"
        run.process.kill()
        wait_until(lambda: not run.find("guardrun-preflight"), 10, "the end of the pre-flight")
