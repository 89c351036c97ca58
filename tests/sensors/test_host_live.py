"""The host's sensors on real parts: a small disk, a quota, a pulled cable, the kernel's own log, a dead mount."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from guardrun.supervisor.collect.host.file_systems import read_mounts
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Happening, Judge, Readout
from guardrun.supervisor.health.host.cpus import CpuStarvedJudge
from guardrun.supervisor.health.host.disks import DiskJudge
from guardrun.supervisor.health.host.memory import MemoryJudge
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.sensors.catalog import host_sensors
from guardrun.supervisor.sensors.host.cgroup import CgroupSensor
from guardrun.supervisor.sensors.host.clock import ClockSensor
from guardrun.supervisor.sensors.host.disks import DisksSensor, MountsSensor
from guardrun.supervisor.sensors.host.kernel_log import PATH, KernelLogSensor
from tests.support.cpugroup import cpu_group
from tests.support.deadmount import dead_mount
from tests.support.memorygroup import EATER, memory_group
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def judge_at(judge: Judge, sensor: Sensor, *times_s: float) -> list[Finding]:
    """Real readings, each at a time of the judge's."""
    found = []
    for at_s in times_s:
        readout = msgspec.structs.replace(sensor.read(at_s), at_s=at_s)
        found += judge.judge_readout(readout, at_s)
    return found


# Disks -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m", "guardrun-test", folder)
    try:
        yield folder
    finally:
        run("umount", folder)


def of(found: list[Finding], folder: Path) -> list[tuple[str, bool]]:
    """What was found of a folder's mount."""
    return [(f.id.rsplit("/", 1)[-1], f.is_over) for f in found if f.subject == f"mount:{folder}"]


@pytest.mark.real("mount")
def test_a_disk_fills_up_is_emptied_and_turns_read_only(small_disk: Path) -> None:
    judge, sensor = DiskJudge(), DisksSensor()
    assert of(judge_at(judge, sensor, 0, 20), small_disk) == []
    file = small_disk / "big"
    with pytest.raises(OSError, match="No space left"), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(1 << 16))
    found = judge_at(judge, sensor, 40, 60, 80)
    assert of(found, small_disk) == [("full", False)]
    file.unlink()
    assert of(judge_at(judge, sensor, 100, 120), small_disk) == [("full", True)]
    run("mount", "-o", "remount,ro", small_disk)
    assert of(judge_at(judge, sensor, 140, 160), small_disk) == [("read_only", False)]
    run("mount", "-o", "remount,rw", small_disk)
    assert of(judge_at(judge, sensor, 180, 200), small_disk) == [("read_only", True)]


@pytest.mark.real("fuse")
def test_a_mount_that_does_not_answer_is_found_and_comes_back(tmp_path: Path) -> None:
    judge = DiskJudge()
    sensor = MountsSensor(lambda: [mount for mount in read_mounts() if mount.point == str(tmp_path)], answer_s=0.3)
    with dead_mount(tmp_path):
        found = judge_at(judge, sensor, 0, 60)
        assert of(found, tmp_path) == [("silent", False)]
        assert sensor.read(1.0).samples[0].value is False
    assert sensor.read(2.0).samples == [], "it is not mounted any more"


# Groups ------------------------------------------------------------------------------------------------


@pytest.mark.real("root")
def test_a_process_that_its_quota_holds_back() -> None:
    with cpu_group("spinning", share=0.02) as group:
        code = "print('ready', flush=True)\nwhile True: pass"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            group.put(process.pid)
            subject = f"cgroup:/{group.path.name}"
            sensor = CgroupSensor(pids=lambda: [process.pid])

            def periods() -> int:
                samples = [s for s in sensor.read(0.0).samples if s.subject == subject and s.name == "periods"]
                return int(samples[0].value or 0) if samples else 0

            judge, found = CpuStarvedJudge(), []
            for turn in range(7):
                seen = periods()
                wait_until(lambda seen=seen: periods() >= seen + 2, 10, "two more periods")  # type: ignore[misc]
                found += judge_at(judge, sensor, turn * 10)
            assert [finding.id for finding in found] == [f"cpu_starved/{subject}/quota"]
        finally:
            process.kill()
            process.communicate()


# Links -------------------------------------------------------------------------------------------------

IN_NAMESPACE = """
import sys, time
from guardrun.supervisor.health.host.network import NetworkJudge
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.sensors.network.interfaces import NetworkSensor
judge = NetworkJudge()
def tell(readout):
    for happening in readout.happenings:
        print(happening.name, happening.subject, flush=True)
    for finding in judge.judge_readout(readout, time.monotonic()):
        print("found", finding.id, finding.response.value, flush=True)
    if readout.trouble:
        print("trouble", readout.trouble, flush=True)
    if readout.samples:
        print("counted", flush=True)
runner = Runner([NetworkSensor()], tell)
runner.start()
sys.stdin.read()
runner.close()
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with one cable in it, whose one end leads out."""
    name = f"guardrun-{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "add", "near0", "type", "veth", "peer", "name", "far0")
        for end in ("near0", "far0"):
            run("ip", "-n", name, "link", "set", end, "up")
        run("ip", "-n", name, "addr", "add", "10.199.0.1/24", "dev", "near0")
        run("ip", "-n", name, "route", "add", "default", "via", "10.199.0.2")
        yield name
    finally:
        run("ip", "netns", "del", name)


@pytest.mark.real("netns")
def test_a_cable_that_is_pulled_twice(namespace: str) -> None:
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", IN_NAMESPACE],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    lines: list[str] = []

    def hear(wanted: str) -> None:
        assert process.stdout is not None
        while not lines or lines[-1] != wanted:
            line = process.stdout.readline().rstrip("\n")
            assert line, f"it ended before {wanted!r}: {lines}"
            lines.append(line)

    try:
        hear("counted")
        began_s = time.monotonic()
        for _ in range(2):
            run("ip", "-n", namespace, "link", "set", "far0", "down")
            hear("link_down net:near0")
            run("ip", "-n", namespace, "link", "set", "far0", "up")
            hear("link_up net:near0")
        assert time.monotonic() - began_s < 25, "waited on, not polled four times, ten seconds apart"
        hear("counted")
        assert "found network/net:near0/flapping isolate" in lines
        assert not any("far0/flapping" in line or line.startswith("trouble") for line in lines), lines
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


# The kernel's log --------------------------------------------------------------------------------------


def write_log(text: str) -> None:
    """One line, as a program of root's may write it; each opening has a rate limit of its own."""
    with open(PATH, "w") as log:
        log.write(f"{text}\n")


def log_bytes() -> int:
    """How much the kernel's log holds (syslog(2), SYSLOG_ACTION_SIZE_BUFFER)."""
    return int(ctypes.CDLL(None).klogctl(10, None, 0))


@pytest.mark.real("kmsg")
def test_the_kernels_log_is_waited_on() -> None:
    write_log("watchdog: BUG: soft lockup - CPU#9 stuck for 99s! [guardrun-before:1]")
    told: list[Happening] = []
    readouts: list[Readout] = []

    def deliver(readout: Readout) -> None:
        readouts.append(readout)
        told.extend(readout.happenings)

    runner = Runner([KernelLogSensor()], deliver)
    runner.start()
    try:
        wait_until(lambda: readouts, 5, "the first turn")
        began_s = time.monotonic()
        write_log("INFO: task guardrun-test:4242 blocked for more than 120 seconds.")
        (happening,) = wait_until(lambda: [h for h in told if h.name == "hung_task"], 5, "the line")
        assert time.monotonic() - began_s < 30 < KernelLogSensor.period_s
        assert happening.data == {"task": "guardrun-test", "pid": 4242, "seconds": 120}
        assert not any("guardrun-before" in h.text for h in told), "from now on"
    finally:
        runner.close()


@pytest.mark.real("kmsg")
def test_a_log_that_overflows_says_how_much_was_lost() -> None:
    if log_bytes() > 1 << 20:
        pytest.skip("real part kmsg: a log of more than 1 MiB is too much to fill")
    sensor = KernelLogSensor()
    sensor.read(1.0)
    for number in range(log_bytes() // 900 + 200):
        write_log(f"guardrun-test {number} " + "x" * 900)
    readout = sensor.read(2.0)
    sensor.close()
    (lost,) = [happening for happening in readout.happenings if happening.name == "lines_lost"]
    assert int(lost.data["lines"]) >= 1 and "were lost" in readout.trouble
    assert {sample.name: sample.value for sample in readout.samples}["lost_lines"] == lost.data["lines"]


@pytest.mark.real("kmsg", "memory cgroup")
def test_a_kill_for_want_of_memory_is_named_with_its_group() -> None:
    log, judge = KernelLogSensor(), MemoryJudge()
    log.read(0.0)
    with memory_group() as group:
        eater = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE)
        try:
            (group / "cgroup.procs").write_text(str(eater.pid))
            eater.communicate(b"go\n", timeout=60)
            readout = log.read(10.0)
        finally:
            eater.kill()
            eater.wait()
            log.close()
    # The kernel's log is the whole machine's: another test's processes may be in it, too.
    (kill,) = [h for h in readout.happenings if h.name == "oom_kill" and h.data["pid"] == eater.pid]
    assert kill.data["cgroup"] == f"/{group.name}"
    (finding,) = judge.judge_readout(msgspec.structs.replace(readout, happenings=[kill]), 10.0)
    assert f"(process {eater.pid}) in control group /{group.name}" in finding.summary


@pytest.mark.real("mkfs.ext4", "mount", "kmsg")
def test_a_file_system_that_meets_an_error_turns_read_only(tmp_path: Path) -> None:
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", image)
    run("mount", "-o", "loop,errors=remount-ro", image, folder)
    log, disks, judge = KernelLogSensor(), DisksSensor(), DiskJudge()
    try:
        source = next(mount.source for mount in read_mounts() if mount.point == str(folder))
        name = source.removeprefix("/dev/")
        log.read(0.0)
        judge_at(judge, disks, 0)
        trigger = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
        trigger.write_text("on purpose")
        readout = log.read(10.0)
        told = [(h.name, h.subject) for h in readout.happenings if h.subject == f"disk:{name}"]
        assert told == [("fs_error", f"disk:{name}"), ("fs_read_only", f"disk:{name}")]
        assert judge.judge_readout(readout, 10.0) == [], "an image's errors blame no disk"
        assert of(judge_at(judge, disks, 20, 40), folder) == [("read_only", False)]
    finally:
        log.close()
        run("umount", folder)


def test_a_log_that_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    sensor = KernelLogSensor(str(tmp_path / "none"))
    readout = sensor.read(1.0)
    assert sensor.fileno() == -1 and readout.trouble.endswith("none is not there")
    assert readout.samples[0].value is None and readout.samples[0].trouble == readout.trouble
    assert KernelLogSensor("/dev/null").read(1.0).trouble == "/dev/null is no log of the kernel's"


# All together ------------------------------------------------------------------------------------------


def test_the_clock_of_this_machine() -> None:
    names = {sample.name for sample in ClockSensor().read(1.0).samples}
    assert names >= {"is_synchronized", "offset_s"}


def test_all_sensors_together_cost_next_to_nothing() -> None:
    readouts: list[Readout] = []
    sensors = [sensor for sensor in host_sensors() if sensor.name != "mounts"]
    for sensor in sensors:
        sensor.timeout_s = 60.0  # on a busy machine a turn takes longer than it may
    runner = Runner(sensors, readouts.append)
    runner.start()
    try:
        names = {turn.name for turn in runner.turns()}
        wait_until(lambda: {readout.sensor for readout in readouts} >= names, 10, "everybody's first turn")
        assert not any(readout.is_silent or "failed" in readout.trouble for readout in readouts)
    finally:
        runner.close()
