"""The GPU sensor: the real process, the real pynvml, a driver library that answers what a test wants."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pynvml
import pytest

from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.gpu_inventory import LostJudge, strangers
from guardrun.supervisor.health.judges import gpu_judges
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.sensors.gpu import gpu_sensor as sensors
from guardrun.supervisor.sensors.gpu.gpu_sensor import MAX_STUCK, GpuSensor
from tests.sensors.nvml_stub import LIBRARY, NvmlStub
from tests.sensors.stuckmount import stuck_mount
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("cc")

Make = Callable[..., GpuSensor]
PATIENCE_S = 60.0
"""For what should come at once."""


def uuid(index: int) -> str:
    return f"gpu:GPU-00000000-0000-0000-0000-{index:012d}"


def read(sensor: GpuSensor, at_s: float | None = None) -> Readout:
    return sensor.read(time.monotonic() if at_s is None else at_s)


def values(readout: Readout, subject: str = uuid(0)) -> dict[str, Value | None]:
    return {sample.name: sample.value for sample in readout.samples if sample.subject == subject}


def trouble(readout: Readout, name: str, subject: str = uuid(0)) -> str:
    found = [sample for sample in readout.samples if (sample.subject, sample.name) == (subject, name)]
    assert len(found) == 1, f"{name} is told {len(found)} times"
    assert found[0].value is None, f"{name} is {found[0].value!r}"
    return found[0].trouble


@pytest.fixture
def stub(nvml_stub: NvmlStub) -> NvmlStub:
    return nvml_stub


@pytest.mark.parametrize(
    "name",
    [
        "nvmlPciInfo_t",
        "c_nvmlMemory_t",
        "c_nvmlMemory_v2_t",
        "c_nvmlFieldValue_t",
        "c_nvmlProcessInfo_v2_t",
        "c_nvmlEventData_t",
        "c_nvmlEccSramErrorStatus_v1_t",
    ],
)
def test_the_stubs_structs_are_as_long_as_pynvmls(nvml_library: Path, name: str) -> None:
    library = ctypes.CDLL(str(nvml_library / LIBRARY))
    library.stub_size_of.restype = ctypes.c_size_t
    assert library.stub_size_of(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


def test_the_first_turn_tells_everything(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    stub.set(gpu=1, temperature=71, memory_temperature=77, reasons="sw_power_cap", sm_clock=1755, power=698_500)
    stub.set(gpu=1, ecc_aggregate_corrected=12, remapped_uncorrected=1, remap_pending=1, recovery_action=4)
    stub.set(gpu=1, processes="4242=512000000 4243=?", mps="4244=1000", nvlink_down=",3,7,", nvlink_recovery=9)
    readout = read(gpu_sensor())
    assert readout.sensor == "gpu"
    assert (readout.trouble, readout.is_silent) == ("", False)
    assert values(readout, uuid(1)) == {
        "index": 1,
        "model": "NVIDIA H100 80GB HBM3",
        "bus": "0000:3c:00",
        "mig_enabled": False,
        "mig_instances": "",
        "ecc_enabled": True,
        "temperature_shutdown_c": 92,
        "temperature_slowdown_c": 89,
        "temperature_max_c": 87,
        "memory_temperature_max_c": 95,
        "sm_clock_max_hz": 1980e6,
        "memory_clock_max_hz": 2619e6,
        "power_limit_w": 700,
        "retired_pages_corrected": None,
        "retired_pages_uncorrected": None,
        "retired_pages_pending": None,
        "temperature_c": 71,
        "memory_temperature_c": 77,
        "clock_reasons": "sw_power_cap",
        "sm_clock_hz": 1755e6,
        "memory_clock_hz": 2619e6,
        "power_w": 698.5,
        "utilization_ratio": 0.97,
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 80 << 30,
        "ecc_volatile_corrected": 0,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_corrected": 12,
        "ecc_aggregate_uncorrected": 0,
        "ecc_sram_threshold_exceeded": False,
        "remapped_rows_corrected": 0,
        "remapped_rows_uncorrected": 1,
        "remap_pending": True,
        "remap_failed": False,
        "recovery_action": "drain_and_reset",
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "pcie_replays": 0,
        "nvlink_links": 18,
        "nvlink_active": 16,
        "nvlink_inactive": "3,7",
        "nvlink_crc_flit_errors": 0,
        "nvlink_crc_data_errors": 0,
        "nvlink_replay_errors": 0,
        "nvlink_recovery_errors": 9,
        "holders": "4242=512000000 4243=? 4244=1000",
        "is_lost": False,
    }
    assert values(readout, "node") == {
        "driver_version": "580.95.05",
        "gpus": f"{uuid(0)[4:]} {uuid(1)[4:]}",
        "gpu_count": 2,
        "gpus_missing": "",
        "gpus_unusable": "",
        "gpus_hidden": 0,
        "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
    }
    assert trouble(readout, "retired_pages_pending") == "not supported by this device"


def test_later_turns_read_what_is_due(stub: NvmlStub, gpu_sensor: Make) -> None:
    sensor = gpu_sensor()
    now_s = time.monotonic()
    readouts = [read(sensor, now_s + later_s) for later_s in (0.0, 2.0, 10.0, 60.0)]
    assert [readout.is_partial for readout in readouts] == [False, True, True, False]
    names = [set(values(readout)) for readout in readouts]
    fast, health, limits = {"temperature_c", "clock_reasons"}, {"remap_pending", "nvlink_active"}, {"power_limit_w"}
    assert names[0] >= fast | health | limits
    assert names[1] >= fast
    assert not names[1] & (health | limits)
    assert names[2] >= fast | health
    assert not names[2] & limits
    assert names[3] >= fast | health | limits


def test_changes_are_seen_while_it_runs(stub: NvmlStub, gpu_sensor: Make) -> None:
    sensor = gpu_sensor()
    assert values(read(sensor))["clock_reasons"] == ""
    stub.set(gpu=0, temperature=95, reasons="hw_slowdown,hw_thermal", sm_clock=810)
    hot = values(read(sensor))
    assert (hot["clock_reasons"], hot["temperature_c"], hot["sm_clock_hz"]) == ("hw_slowdown,hw_thermal", 95, 810e6)
    stub.set(gpu=0, reasons=1 << 20)
    assert values(read(sensor))["clock_reasons"] == "bit_20"


@pytest.mark.parametrize(
    ("fault", "name", "reason"),
    [
        (("temperature", 0xFFFFFFFF), "temperature_c", "which cannot be"),
        (("temperature", 5000), "temperature_c", "which cannot be"),
        (("memory_temperature", "nan"), "memory_temperature_c", "read as nan"),
        (("memory_temperature", "inf"), "memory_temperature_c", "read as inf"),
        (("memory_temperature", "0"), "memory_temperature_c", "no sensor"),
        (("memory_temperature", "none"), "memory_temperature_c", "not supported"),
        (("sm_clock", 0xFFFFFFFF), "sm_clock_hz", "which cannot be"),
        (("power", 4_000_000_000), "power_w", "which cannot be"),
        (("utilization", 250), "utilization_ratio", "which cannot be"),
        (("memory_used", 1 << 60), "memory_used_bytes", "which cannot be"),
        (("ecc_volatile_uncorrected", 0xFFFFFFFFFFFFFFFF), "ecc_volatile_uncorrected", "which cannot be"),
        (("pcie_width", 0), "pcie_width", "which cannot be"),
        (("ecc", 0), "ecc_volatile_corrected", "not supported"),
        (("recovery_action", "nan"), "recovery_action", "read as nan"),
        (("error.nvmlDeviceGetPowerUsage", 4), "power_w", "no permission"),
        (("error.nvmlDeviceGetPowerUsage", 999), "power_w", "nvmlDeviceGetPowerUsage: Unknown Error"),
        (("error.nvmlDeviceGetPowerUsage", 16), "power_w", "needs a reset"),
    ],
)
def test_what_cannot_be_is_unknown(
    gpu_sensor: Make, nvml_stub: NvmlStub, fault: tuple[str, int | str], name: str, reason: str
) -> None:
    nvml_stub.set(gpu=0, **dict([fault]))
    readout = read(gpu_sensor())
    assert reason in trouble(readout, name)
    assert values(readout)["pcie_generation"] == 5


def test_a_device_that_needs_a_reset_says_so_by_any_call(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpu=0, recovery_action="none")
    stub.fail("nvmlDeviceGetPowerUsage", 16, gpu=0)
    assert values(read(gpu_sensor()))["recovery_action"] == "gpu_reset"


def test_an_old_driver_is_unknown_where_it_cannot_tell(old_nvml_stub: NvmlStub, gpu_sensor: Make) -> None:
    old_nvml_stub.set(driver="460.32.03", gpus=1)
    old_nvml_stub.set(gpu=0, reasons="sw_thermal", processes="7=70", retires_pages=1, retired_uncorrected=3)
    readout = read(gpu_sensor(environment=old_nvml_stub.environment))
    assert trouble(readout, "remap_pending") == "driver 460.32.03 has no nvmlDeviceGetRemappedRows"
    assert "nvmlDeviceGetSramEccErrorStatus" in trouble(readout, "ecc_sram_threshold_exceeded")
    told = values(readout)
    assert told["clock_reasons"] == "sw_thermal"
    assert told["memory_used_bytes"] == 1 << 30
    assert told["holders"] == "7=70"
    assert (told["retired_pages_corrected"], told["retired_pages_uncorrected"]) == (0, 3)
    assert told["retired_pages_pending"] is False


def test_with_mig_it_says_what_cannot_be_read(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpu=0, mig=1)
    readout = read(gpu_sensor())
    assert values(readout)["mig_enabled"] is True
    assert trouble(readout, "utilization_ratio") == "not supported by this device while MIG is on"
    assert trouble(readout, "remap_failed") == "not supported by this device while MIG is on"


def test_of_a_divided_gpu_instances_and_their_processes_are_told(stub: NvmlStub, gpu_sensor: Make) -> None:
    """What the whole GPU's list says is for administrators."""
    stub.divide(0, "MIG-aa", "MIG-bb", p0="4242=7 4243=1", p1="4242=5")
    stub.set(gpu=0, unprivileged=1, processes="9=9")
    told = values(read(gpu_sensor()))
    assert told["mig_instances"] == "MIG-aa MIG-bb"
    assert told["holders"] == "4242=12 4243=1"
    stub.set(gpu=0, unprivileged=0)
    assert values(read(gpu_sensor()))["holders"] == "9=9"


def test_what_nobody_may_know_of_a_divided_gpu_is_unknown(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpu=0, mig=1, unprivileged=1, processes="9=9")
    readout = read(gpu_sensor())
    assert values(readout)["mig_instances"] == ""
    assert trouble(readout, "holders") == "no permission to read it"


def test_it_says_whose_process_ids_these_are(stub: NvmlStub, gpu_sensor: Make) -> None:
    assert values(read(gpu_sensor()), "node")["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino


def test_no_library_is_no_error_and_keeps_no_process(tmp_path: Path, gpu_sensor: Make) -> None:
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidiactl").touch()
    sensor = gpu_sensor(environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    readout = read(sensor)
    if not readout.trouble:
        pytest.skip("this machine has a libnvidia-ml.so.1 of its own")
    assert "NVML Shared Library Not Found" in readout.trouble
    assert (readout.samples, readout.is_silent) == ([], False)
    assert sensor.pid == 0
    assert read(sensor, time.monotonic() + 60).trouble == readout.trouble
    assert sensor.pid == 0


def test_a_node_without_gpus_costs_no_process(tmp_path: Path, gpu_sensor: Make) -> None:
    sensor = gpu_sensor(environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    readout = read(sensor)
    assert readout.trouble == "there is no NVIDIA device here, and no driver"
    assert (readout.samples, readout.is_silent, sensor.pid) == ([], False, 0)


def test_no_driver_is_told_and_found_when_it_comes(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.fail("nvmlInitWithFlags", 9)
    sensor = gpu_sensor()
    readout = read(sensor)
    assert "Driver Not Loaded" in readout.trouble
    assert sensor.pid == 0
    stub.fail("nvmlInitWithFlags", 0)
    assert read(sensor, time.monotonic() + 700).samples


def test_a_device_that_falls_off_the_bus_leaves_the_others(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    sensor = gpu_sensor()
    assert values(read(sensor))["is_lost"] is False
    stub.set(gpu=0, lost=1)
    readout = read(sensor)
    assert values(readout) == {"is_lost": True}
    assert values(readout, uuid(1))["temperature_c"] == 45
    stub.set(gpu=0, lost=0)
    assert values(read(sensor))["is_lost"] is False


def test_a_device_lost_before_is_named_by_its_index(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    stub.set(gpu=1, lost=1)
    readout = read(gpu_sensor())
    assert values(readout, "node")["gpus_unusable"] == "1: GPU is lost (nvmlDeviceGetHandleByIndex)"
    assert values(readout, "node")["gpu_count"] == 1


def test_others_devices_are_hidden_not_lost(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=4)
    for gpu in (0, 3):
        stub.fail("nvmlDeviceGetHandleByIndex_v2", 4, gpu=gpu)
    node = values(read(gpu_sensor()), "node")
    assert (node["gpu_count"], node["gpus_hidden"], node["gpus_unusable"]) == (2, 2, "")


def test_a_lost_device_is_found_again_after_its_reset(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    sensor = gpu_sensor(first_pause_s=0.01)
    judge = LostJudge()
    told: list[tuple[bool, str]] = []
    now_s = time.monotonic()

    def turn(later_s: float) -> Readout:
        readout = read(sensor, now_s + later_s)
        told.extend((found.is_over, found.subject) for found in judge.judge_readout(readout, now_s + later_s))
        return readout

    def minutes(from_s: float) -> None:
        """Ends the process that has the lost handle, then lets the next one look twice."""
        for turn_s in (0, 60, 62, 64, 124, 126, 186):
            turn(from_s + turn_s)

    turn(0)
    stub.set(gpu=1, lost=1)
    turn(2)
    turn(4)
    assert told == [(False, uuid(1))]
    minutes(6)
    assert told == [(False, uuid(1))], "the same device, whatever the driver calls it"
    stub.set(gpu=1, lost=0)
    minutes(300)
    assert told == [(False, uuid(1)), (True, uuid(1))]
    assert values(turn(600), uuid(1))["temperature_c"] == 45


def test_a_call_that_never_returns_is_told_with_its_name_and_another_process_is_tried(
    stub: NvmlStub, gpu_sensor: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "WHERE_S", 30.0)
    stub.set(gpus=4)
    sensor = gpu_sensor(patience_s=3.0, first_pause_s=0.05)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a first turn")
    before = sensor.pid
    stub.hang("nvmlDeviceGetPowerUsage", gpu=3)
    began_s = time.monotonic()
    readout = read(sensor)
    assert readout.is_silent
    assert "nvmlDeviceGetPowerUsage of GPU 3" in readout.trouble
    assert time.monotonic() - began_s < sensor.timeout_s
    assert read(sensor, began_s).is_silent, "it is silent until it has answered"
    stub.hang("nvmlDeviceGetPowerUsage", gpu=3, is_hanging=False)
    readout = wait_until(lambda: (found := read(sensor)).samples and found, PATIENCE_S, "an answer")
    assert (readout.is_silent, readout.trouble) == (False, "")
    assert sensor.pid not in (0, before)


def test_pauses_grow_while_it_stays_silent(stub: NvmlStub, gpu_sensor: Make) -> None:
    sensor = gpu_sensor(patience_s=1.5, first_pause_s=20.0)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a first turn")
    stub.hang("nvmlDeviceGetTemperature", gpu=0)
    assert read(sensor).is_silent
    tried_s = time.monotonic()
    assert sensor.pid == 0
    read(sensor, tried_s + 10.0)
    assert sensor.pid == 0, "it has been tried again too early"

    def is_silent_again() -> bool:
        """NVML comes up, so the next process hangs in its first turn, too, and is ended."""
        return read(sensor, time.monotonic() + 21.0).is_silent and sensor.pid == 0

    wait_until(is_silent_again, PATIENCE_S, "the second silence")
    read(sensor, time.monotonic() + 30.0)
    assert sensor.pid == 0, "the second pause is no longer than the first"


@pytest.mark.real("fuse")
def test_processes_that_cannot_be_killed_hold_nothing_up(stub: NvmlStub, gpu_sensor: Make, tmp_path: Path) -> None:
    """The driver's calls are in uninterruptible wait: reading is from a file system that has taken the request."""
    (tmp_path / "mount").mkdir()
    # On a busy machine a process takes more than half a second to begin.
    sensor = gpu_sensor(patience_s=0.5, init_patience_s=6.0, first_pause_s=0.01)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a first turn")
    with stuck_mount(tmp_path / "mount") as folder:
        stub.lead_to(folder / "nvml")

        def is_given_up() -> bool:
            readout = read(sensor, time.monotonic() + 1000)
            assert not readout.samples
            return "3 processes are stuck in the driver, no other is tried" in readout.trouble

        wait_until(is_given_up, PATIENCE_S, "the last process that is tried")
        stuck = sensor.stuck
        assert (len(stuck), sensor.pid) == (MAX_STUCK, 0)
        assert all(Path(f"/proc/{pid}").exists() for pid in stuck), "they were killed, so they were not stuck"
        began_s = time.monotonic()
        sensor.close()
        assert time.monotonic() - began_s < 30
    for pid in stuck:
        wait_until(lambda pid=pid: is_reaped(pid), PATIENCE_S, "its end")


def is_reaped(pid: int) -> bool:
    """Whether a child has ended; the subprocess module may have taken note of it before us."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def test_initialising_slowly_is_no_silence(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.hang("nvmlInitWithFlags")
    sensor = gpu_sensor(patience_s=0.3)
    readout = read(sensor)
    assert (readout.trouble, readout.is_silent) == ("NVML is being initialised", False)
    stub.hang("nvmlInitWithFlags", is_hanging=False)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a first turn")


def test_a_library_that_crashes_is_told_and_started_anew(
    stub: NvmlStub, gpu_sensor: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "END_S", 30.0)
    sensor = gpu_sensor(first_pause_s=0.05)
    read(sensor)
    stub.crash("nvmlDeviceGetRemappedRows", gpu=0)
    readout = read(sensor, time.monotonic() + 11)
    assert "SIGSEGV" in readout.trouble
    assert (readout.samples, readout.is_silent) == ([], False)
    stub.crash("nvmlDeviceGetRemappedRows", gpu=0, is_crashing=False)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a turn of the next process")


def test_a_stopped_process_is_silent(gpu_sensor: Make) -> None:
    sensor = gpu_sensor(patience_s=0.3)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a first turn")
    os.kill(sensor.pid, signal.SIGSTOP)
    assert read(sensor).is_silent
    assert sensor.pid == 0


def test_a_driver_that_is_unloaded_is_told(stub: NvmlStub, gpu_sensor: Make) -> None:
    sensor = gpu_sensor(first_pause_s=0.05)
    read(sensor)
    stub.fail("nvmlDeviceGetTemperature", 1, gpu=0)
    assert "nvmlDeviceGetTemperature: Uninitialized" in read(sensor).trouble
    stub.fail("nvmlDeviceGetTemperature", 0, gpu=0)
    wait_until(lambda: read(sensor).samples, PATIENCE_S, "a turn of the next process")


def test_xids_wake_the_sensor(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    sensor = gpu_sensor(period_s=600.0)
    readout = read(sensor)
    assert not select.select([sensor], [], [], 0)[0]
    xids: list[tuple[str, object]] = []
    for code in (79, 48):
        stub.xid(gpu=1, code=code)
        assert select.select([sensor], [], [], PATIENCE_S)[0], "not woken"
        readout = read(sensor)
        assert readout.samples == [], "a turn that was not due"
        xids += [(happening.subject, happening.data["xid"]) for happening in readout.happenings]
    assert xids == [(uuid(1), 79), (uuid(1), 48)]
    assert readout.happenings[0].data == {"xid": 48, "bus": "0000:3c:00", "source": "nvml"}
    assert abs(readout.happenings[0].at_s - time.monotonic()) < PATIENCE_S


def test_xids_go_on_after_a_device_was_lost(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpus=2)
    sensor = gpu_sensor()
    read(sensor)
    stub.set(gpu=0, lost=1)
    read(sensor)

    def wake() -> list[object]:
        stub.xid(gpu=1, code=94)
        select.select([sensor], [], [], 0.5)
        return [happening.data["xid"] for happening in read(sensor).happenings]

    assert set(wait_until(wake, PATIENCE_S, "an Xid of the device that is left")) == {94}


def test_a_story_of_throttling_an_xid_and_a_lost_device_under_the_runner(stub: NvmlStub, gpu_sensor: Make) -> None:
    """The parts together as the agent has them; turns come faster, so that it takes seconds."""
    stub.set(gpus=2)
    told: list[Finding] = []
    judges = gpu_judges()
    stretch = 20.0
    """Each second stands for so many: the judges have no clock of their own."""

    def deliver(readout: Readout) -> None:
        at_s = readout.at_s * stretch
        for judge in judges:
            told.extend(judge.judge_readout(msgspec.structs.replace(readout, at_s=at_s), at_s))

    def find(finding_id: str, *, is_over: bool = False) -> Finding:
        def look() -> Finding | None:
            return next((found for found in list(told) if (found.id, found.is_over) == (finding_id, is_over)), None)

        return wait_until(look, PATIENCE_S, f"{finding_id}, is_over={is_over}")

    runner = Runner([gpu_sensor(period_s=0.1)], deliver)
    runner.start()
    try:
        stub.set(gpu=1, temperature=95, reasons="hw_slowdown,hw_thermal", sm_clock=810)
        throttling = find(f"throttle/{uuid(1)}")
        assert "GPU 1 throttles: its hardware slows it down because it is too hot: 95 °C" in throttling.summary
        stub.set(gpu=1, temperature=60, reasons="", sm_clock=1980)
        find(f"throttle/{uuid(1)}", is_over=True)
        stub.xid(gpu=0, code=79)
        assert find(f"gpu_xid/{uuid(0)}/79").response is Response.ISOLATE
        stub.set(gpu=0, lost=1)
        assert "GPU 0 has fallen off the bus" in find(f"gpu_lost/{uuid(0)}").summary
    finally:
        runner.close()
    assert {found.subject for found in told if found.cause == "throttle"} == {uuid(1)}


def test_devices_that_the_driver_should_show_are_missing(stub: NvmlStub, gpu_sensor: Make, tmp_path: Path) -> None:
    """By the bus: 3b is shown; 3c is not; 3d is another container's; 3e another driver's; 3f is a bridge."""
    root = tmp_path / "machine"
    for minor, (bus, kind) in enumerate(
        [("3b", "0x030200"), ("3c", "0x030200"), ("3d", "0x030200"), ("3f", "0x068000")]
    ):
        device = root / f"sys/bus/pci/devices/0000:{bus}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text(f"{kind}\n")
        driver = root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0"
        driver.mkdir(parents=True)
        (driver / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")
    bare = root / "sys/bus/pci/devices/0000:3e:00.0"
    bare.mkdir(parents=True)
    (bare / "vendor").write_text("0x10de\n")
    (bare / "class").write_text("0x030200\n")
    (root / "dev").mkdir()
    for minor in (0, 1, 3):
        (root / f"dev/nvidia{minor}").touch()
    assert values(read(gpu_sensor(root=str(root))), "node")["gpus_missing"] == "0000:3c:00"


def test_others_that_hold_memory_are_strangers(stub: NvmlStub, gpu_sensor: Make) -> None:
    stub.set(gpu=0, processes="4242=512000000 4243=?")
    readout = read(gpu_sensor())
    found = strangers(readout, own={4242})
    assert [(one.label, one.pid, one.used_bytes) for one in found] == [("GPU 0", 4243, None)]


def test_it_ends_with_its_parent_even_when_stopped(stub: NvmlStub) -> None:
    code = """
        import sys, time
        from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor
        sensor = GpuSensor()
        assert sensor.read(time.monotonic()).samples
        print(sensor.pid, flush=True)
        sys.stdin.read()
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=pipe, stdout=pipe, env=stub.environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    # Orphans of a test become its children (tests/conftest.py).
    assert wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], PATIENCE_S, "the end of the process") == pid


def test_it_is_small_and_has_nothing_of_ours_open(stub: NvmlStub, gpu_sensor: Make) -> None:
    """Of the agent's 50 MB; the interpreter's own pages count in full where no other process shares them."""
    stub.set(gpus=8)
    sensor = gpu_sensor()
    for _ in range(5):
        assert read(sensor).samples
    rollup = Path(f"/proc/{sensor.pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss_kb < 20 * 1024

    def has_open() -> set[str]:
        """Where its descriptors lead; the stub reads its answers from a file now and then."""
        found = set()
        for path in Path(f"/proc/{sensor.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(os.readlink(path).partition(":")[0])
        return found

    wait_until(lambda: has_open() == {"/dev/null", "socket"}, 5.0, "nothing else to be open")
    assert "guardrund" in Path(f"/proc/{sensor.pid}/cmdline").read_text()
