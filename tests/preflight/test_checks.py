"""The checks against conditions that are really there."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.preflight.base.remark import Check, Remark, Severity, Subject, ok, run_checks
from guardrun.supervisor.preflight.check_table import QUICK
from guardrun.supervisor.preflight.checks import (
    folders,
    gpus,
    interfaces,
    libraries,
    limits,
    ports,
    shm,
    versions,
)
from tests.sensors.nvml_stub import NvmlStub
from tests.support.deadmount import dead_mount
from tests.support.waiting import wait_until

OK, NOTE, WARN, REFUSE = Severity
Make = Callable[..., Subject]


def worst_of(remarks: list[Remark]) -> Remark:
    return max(remarks, key=lambda one: one.severity.rank)


def test_all_quick_checks_within_their_time(subject: Make, tmp_path: Path) -> None:
    report = run_checks(QUICK, subject(run_folder=str(tmp_path / "runs"), checkpoint_dir=str(tmp_path)))
    assert report.took_s < 20
    assert {one.check for one in report.remarks} >= {
        "quarantine",
        "gpus",
        "versions",
        "libraries",
        "interfaces",
        "ports",
        "limits",
        "shm",
        "disks",
        "folders",
        "clock",
    }
    assert worst_of(report.remarks).severity is not REFUSE
    assert not (tmp_path / "runs").exists(), "who looks changes nothing"


# Running --------------------------------------------------------------------------------------------------------


def test_one_that_hangs_and_one_that_raises_are_in_nobodys_way(subject: Make) -> None:
    release = threading.Event()

    def hang(_: Subject) -> list[Remark]:
        release.wait(30)
        return []

    def fail(_: Subject) -> list[Remark]:
        raise ValueError("not expected")

    checks = [Check("slow", hang), Check("broken", fail), Check("fine", lambda _: [ok("fine", "Fine.")])]
    try:
        report = run_checks(checks, subject(), timeout_s=5.0)
    finally:
        release.set()
    assert [(one.check, one.severity) for one in report.remarks] == [("slow", WARN), ("broken", WARN), ("fine", OK)]
    assert "did not answer within 5 s" in report.remarks[0].summary
    assert "ValueError: not expected" in report.remarks[1].summary
    assert report.took_s < 20


# Ports ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        yield one


def test_a_port_in_use_names_its_holder(subject: Make, listener: socket.socket) -> None:
    [remark] = ports.run(subject(port=listener.getsockname()[1]))
    assert remark.severity is REFUSE
    assert f"(pid {os.getpid()})" in remark.summary and "--master-port" in remark.advice


def test_a_port_that_is_just_being_let_go_is_free(subject: Make, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first is left in TIME_WAIT
        client.recv(1)
    listener.close()
    assert ports.run(subject(port=port))[0].severity is OK


def test_a_port_that_is_none(subject: Make) -> None:
    assert ports.run(subject(port=70_000))[0].severity is WARN
    assert ports.run(subject())[0].severity is OK


# Environment ----------------------------------------------------------------------------------------------------


def test_interfaces_that_are_not_there(subject: Make) -> None:
    remarks = interfaces.run(
        subject({"NCCL_SOCKET_IFNAME": "nosuch", "GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "=mlx5_77:1"})
    )
    assert [(one.severity, one.evidence["variable"]) for one in remarks] == [
        (WARN, "NCCL_SOCKET_IFNAME"),
        (OK, "GLOO_SOCKET_IFNAME"),
        (WARN, "NCCL_IB_HCA"),
    ]
    assert "lo" in remarks[0].summary


def test_another_nccl_in_front_of_torchs(subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In front of a torch for CUDA, which need not run for that: its files are read."""
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").touch()
    (packages / "torch" / "version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    fake = tmp_path / "module"
    fake.mkdir()
    (fake / "libnccl.so.2").write_bytes(b"\x7fELF")
    code = (
        "import os, sys, msgspec; from guardrun.supervisor.preflight.checks import libraries, versions\n"
        "from guardrun.supervisor.preflight.base.remark import subject_here\n"
        "found = [one for check in (libraries, versions) for one in check.run(subject_here('n'))]\n"
        "assert 'torch' not in sys.modules; print(msgspec.json.encode(found).decode())"
    )
    env = {**os.environ, "PYTHONPATH": str(packages), "LD_LIBRARY_PATH": str(fake)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert '"severity":"warn"' in done.stdout and "libnccl.so.2" in done.stdout
    assert "built for CUDA 12.8" in done.stdout or "2.9.1+cu128" in done.stdout
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert versions.run(subject())[0].severity is WARN
    assert libraries.run(subject({"LD_LIBRARY_PATH": str(fake)}))[0].severity is NOTE


def test_few_open_files(subject: Make) -> None:
    """In a process of its own: a limit that is lowered here would stay lowered."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from guardrun.supervisor.preflight.checks import limits\n"
        "from guardrun.supervisor.preflight.base.remark import subject_here\n"
        "print(limits.run(subject_here('n'))[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "only 256 files" in done.stdout and "WARN" in done.stdout


def test_own_threads_are_counted(subject: Make) -> None:
    before = limits.count_own_threads(os.getuid())
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        assert limits.count_own_threads(os.getuid()) >= min(before, 1) + 20
    finally:
        release.set()
        for thread in threads:
            thread.join()
    left, _ = limits.read_processes_left()
    assert left is None or 0 <= left <= resource.getrlimit(resource.RLIMIT_NPROC)[0] or left > 0


# Folders --------------------------------------------------------------------------------------------------------


def save(path: Path, size_bytes: int) -> None:
    """A checkpoint as torch.save lays it out, by its name; its content is not looked at here."""
    path.write_bytes(b"PK" + b"\0" * (size_bytes - 2))


@pytest.mark.real("mount")
def test_no_room_for_another_checkpoint(subject: Make, small_tmpfs: Path) -> None:
    save(small_tmpfs / "ckpt_10.pt", 3 << 20)
    [remark] = [one for one in folders.run(subject(checkpoint_dir=str(small_tmpfs))) if one.check == "folders"]
    assert remark.severity is OK and "last one took 3 MiB" in remark.summary
    save(small_tmpfs / "ckpt_20.pt", 4 << 20)
    [remark] = [one for one in folders.run(subject(checkpoint_dir=str(small_tmpfs))) if one.check == "folders"]
    assert remark.severity is WARN and "1 MiB left, and a checkpoint takes 4 MiB" in remark.summary
    assert "ckpt_20.pt" in remark.summary


@pytest.mark.real("mount")
def test_a_full_and_a_read_only_file_system(subject: Make, small_tmpfs: Path) -> None:
    (small_tmpfs / "fill").write_bytes(b"x" * (8 << 20))
    remarks = folders.run(subject(run_folder=str(small_tmpfs / "runs"), checkpoint_dir=str(small_tmpfs)))
    said = " ".join(one.summary for one in remarks if one.severity is WARN)
    assert "0 B left of 8 MiB" in said and "The run's record cannot be written" in said and "Checkpoints cannot" in said
    (small_tmpfs / "fill").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_tmpfs)], check=True, timeout=60)
    said = " ".join(one.summary for one in folders.run(subject(checkpoint_dir=str(small_tmpfs / "out"))))
    assert "Read-only file system" in said


@pytest.mark.real("fuse")
def test_a_mount_that_does_not_answer_is_not_touched(subject: Make, tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        began_s = time.monotonic()
        remarks = folders.run(subject(checkpoint_dir=str(folder / "out")))
        assert time.monotonic() - began_s < 20
    [remark] = [one for one in remarks if one.severity is WARN]
    assert str(folder) in remark.summary and "does not answer" in remark.summary


def test_a_folder_with_too_much_in_it_is_given_up(tmp_path: Path) -> None:
    save(tmp_path / "ckpt_10.pt", 100)
    assert folders.last_checkpoint(str(tmp_path), "auto", 1) == (100, str(tmp_path / "ckpt_10.pt"))
    assert folders.last_checkpoint(str(tmp_path), "auto", 1, timeout_s=0.0) == (0, "")
    assert folders.last_checkpoint(str(tmp_path / "none"), "auto", 1) == (0, "")


@pytest.mark.real("root")
@pytest.mark.real("mount")
def test_shared_memory_as_small_as_in_a_container(subject: Make) -> None:
    """In a mount namespace of its own, with Docker's default over /dev/shm."""
    code = (
        "from guardrun.supervisor.preflight.checks import shm\n"
        "from guardrun.supervisor.preflight.base.remark import subject_here\n"
        "print(shm.run(subject_here('n'))[0])"
    )
    script = f'mount -t tmpfs -o size=64m shm {shm.FOLDER} && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, code], capture_output=True, text=True, check=True
    )
    assert "only 64 MiB" in done.stdout and "--shm-size" in done.stdout


# GPUs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML says is the test, not whether a busy machine has it said in the moment that a start has for it."""
    monkeypatch.setattr(gpus, "PATIENCE_S", 30.0)


@pytest.mark.real("cc")
@pytest.mark.usefixtures("unhurried")
def test_healthy_gpus(subject: Make, nvml_stub: NvmlStub) -> None:
    nvml_stub.set(gpus=2)
    remarks = gpus.run(subject(nvml_stub.variables))
    assert [one.severity for one in remarks] == [OK] * len(remarks) and "2 GPUs" in remarks[0].summary


@pytest.mark.real("cc")
@pytest.mark.usefixtures("unhurried")
def test_a_gpu_that_is_lost_or_whose_memory_cannot_be_mended(subject: Make, nvml_stub: NvmlStub) -> None:
    nvml_stub.set(gpus=2)
    nvml_stub.set(gpu=1, lost=1)
    assert worst_of(gpus.run(subject(nvml_stub.variables))).severity is REFUSE
    nvml_stub.set(gpu=1, lost=0, remap_failed=1)
    remark = worst_of(gpus.run(subject(nvml_stub.variables)))
    assert remark.severity is REFUSE and "GPU 1" in remark.summary


@pytest.mark.real("cc")
def test_a_driver_that_does_not_answer(subject: Make, nvml_stub: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "PATIENCE_S", 6.0)
    nvml_stub.hang("nvmlDeviceGetPowerUsage", gpu=0)

    def remark() -> Remark | None:
        began_s = time.monotonic()
        [one, *_] = run_checks([gpus.CHECK], subject(nvml_stub.variables), timeout_s=30.0).remarks
        assert time.monotonic() - began_s < 30
        return one if "nvmlDeviceGetPowerUsage" in one.summary else None  # it had no time to get so far

    said = wait_until(remark, 60, "it to be asked")
    assert said is not None and said.severity is WARN


@pytest.mark.real("cc")
@pytest.mark.usefixtures("unhurried")
def test_a_stranger_on_a_gpu(subject: Make, nvml_stub: NvmlStub) -> None:
    nvml_stub.set(gpu=0, processes=f"{os.getpid()}={8 << 30}")
    remark = worst_of(gpus.run(subject(nvml_stub.variables)))
    assert remark.severity is WARN and f"(pid {os.getpid()}" in remark.summary and "8 GiB" in remark.summary
    remarks = gpus.run(subject({**nvml_stub.variables, "CUDA_VISIBLE_DEVICES": "7"}))
    assert {one.check for one in remarks} == {"gpus"}, "what a run does not see is not its concern"
