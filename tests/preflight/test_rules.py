"""What each check makes of what it reads: the pure halves, as tables."""

from __future__ import annotations

import gc
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.file_systems import Answers, Room
from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.health.gpu.rank_device import INITIAL_PID_NAMESPACE
from guardrun.supervisor.preflight.base.remark import Remark, Severity, ok, size_text, warn, worst
from guardrun.supervisor.preflight.base.torch_files import Torch, find_torch, parse_pins, parse_version_file
from guardrun.supervisor.preflight.checks import (
    clock,
    folders,
    gpu_health,
    interfaces,
    libraries,
    limits,
    ports,
    shm,
    versions,
)
from guardrun.supervisor.preflight.checks.gpu_health import Holder
from guardrun.supervisor.sensors.host.clock import Discipline

OK, NOTE, WARN, REFUSE = Severity
UNLIMITED = resource.RLIM_INFINITY
CUDA = Torch("2.13.0+cu128", "12.8", "", Path("/torch"))
CPU = Torch("2.13.0+cpu", "", "", Path("/torch"))


def test_the_worst_counts() -> None:
    assert worst([]) is OK
    assert worst([ok("a", "."), warn("b", ".", "do")]) is WARN
    assert [one.rank for one in Severity] == [0, 1, 2, 3]
    assert [size_text(size) for size in (5, 1536, 64 << 20, 3 << 40)] == ["5 B", "1.5 KiB", "64 MiB", "3 TiB"]


# Limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "hard", "severity", "advice"),
    [
        (256, 524_288, WARN, "ulimit -n 65536"),
        (256, 1000, WARN, "ulimit -n 1000"),
        (256, 256, WARN, "hard limit raised"),
        (1024, UNLIMITED, NOTE, "ulimit -n 65536"),
        (65536, 65536, OK, ""),
        (UNLIMITED, UNLIMITED, OK, ""),
    ],
)
def test_open_files(soft: int, hard: int, severity: Severity, advice: str) -> None:
    remark = limits.judge_files(soft, hard)
    assert remark.severity is severity and advice in remark.advice


@pytest.mark.parametrize(
    ("soft", "has_infiniband", "severity"),
    [(65536, False, OK), (65536, True, WARN), (2 << 30, True, OK), (UNLIMITED, True, OK)],
)
def test_locked_memory(soft: int, has_infiniband: bool, severity: Severity) -> None:
    assert limits.judge_locked(soft, has_infiniband).severity is severity


@pytest.mark.parametrize(("left", "severity"), [(None, OK), (512, OK), (511, WARN), (0, WARN)])
def test_processes(left: int | None, severity: Severity) -> None:
    assert limits.judge_processes(left, "nproc is 600", 8).severity is severity


# Clock, shared memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wall_s", "discipline", "severity"),
    [
        (1.8e9, Discipline(True, 0.0, 0.01), OK),
        (1.8e9, Discipline(True, 0.0, 3.0), NOTE),
        (1.8e9, Discipline(False, 0.0, 16.0), NOTE),
        (1.8e9, None, NOTE),
        (0.0, Discipline(True, 0.0, 0.01), WARN),
    ],
)
def test_clock(wall_s: float, discipline: Discipline | None, severity: Severity) -> None:
    assert clock.judge(wall_s, discipline, "adjtimex: forbidden").severity is severity


@pytest.mark.parametrize(
    ("total", "free", "ranks", "severity"),
    [
        (64 << 20, 64 << 20, 1, WARN),
        (1 << 30, 1 << 30, 8, OK),
        (1 << 30, 100 << 20, 8, WARN),
        (1 << 30, 100 << 20, 1, OK),
    ],
)
def test_shared_memory(total: int, free: int, ranks: int, severity: Severity) -> None:
    assert shm.judge(total, free, ranks).severity is severity


# Interfaces -----------------------------------------------------------------------------------------------------

NETS = ["eth0", "eth1", "ib0", "lo"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("eth1,ib", ["eth1", "ib0"]),
        ("^eth", ["ib0", "lo"]),
        ("^=eth0,lo", ["eth1", "ib0"]),
        ("bond", []),
        ("mlx5_0:1", []),
    ],
)
def test_what_nccl_chooses(text: str, chosen: list[str]) -> None:
    assert interfaces.parse_nccl(text).chosen(NETS) == chosen


def test_infiniband_devices_may_name_a_port() -> None:
    assert interfaces.parse_nccl("=mlx5_0:1,mlx5_1").chosen(["mlx5_0", "mlx5_1", "mlx5_10"]) == ["mlx5_0", "mlx5_1"]


@pytest.mark.parametrize(
    ("text", "is_nccl", "severity", "said"),
    [
        ("eth", True, OK, "eth0, eth1"),
        ("bond", True, WARN, "which has eth0, eth1, ib0, lo"),
        ("bond,eth", True, OK, "eth0, eth1"),
        ("=bond0,eth0", True, WARN, "names bond0"),
        ("eth0", False, OK, "eth0"),
        ("eth", False, WARN, "leaves nothing"),
        ("ib0", False, WARN, "down"),
        ("^=bond0", True, OK, "chooses"),
    ],
)
def test_prescribed_interfaces(text: str, is_nccl: bool, severity: Severity, said: str) -> None:
    choice = interfaces.parse_nccl(text) if is_nccl else interfaces.parse_names(text)
    remark = interfaces.judge("X_SOCKET_IFNAME", text, choice, NETS, down=["ib0"])
    assert remark.severity is severity and said in remark.summary


# Versions, libraries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "driver", "severity"),
    [
        (CUDA, "570.86.15", OK),
        (CUDA, "525.60.13", OK),
        (CUDA, "525.60.12", WARN),
        (CUDA, "470.256.02", WARN),
        (CUDA, "", NOTE),
        (CUDA._replace(cuda="13.0"), "570.86.15", WARN),
        (CUDA._replace(cuda="14.0"), "570.86.15", OK),
        (CPU, "", OK),
        (CPU, "570.86.15", WARN),
        (CPU._replace(hip="6.2"), "570.86.15", OK),
    ],
)
def test_driver(torch: Torch, driver: str, severity: Severity) -> None:
    assert versions.judge_driver(torch, driver).severity is severity


def test_torchs_version_file() -> None:
    text = (
        "from typing import Optional\n__version__ = '2.9.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\n"
        "hip: Optional[str] = None\n"
    )
    assert parse_version_file(text) == {"__version__": "2.9.1+cu128", "cuda": "12.8"}


class Loop:
    """Garbage that lets another thread go on while it is collected."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_read_torchs_version_file_together() -> None:
    """ast.parse raises SystemError here within a few dozen calls, on CPython 3.11."""
    text = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n"

    def parse(_: int) -> str:
        Loop()
        return parse_version_file(text)["__version__"]

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(parse, range(400))) == {"2.9.1+cu128"}
    finally:
        gc.set_threshold(*thresholds)


def test_the_installed_torch_is_found_without_importing_it() -> None:
    import importlib.metadata

    found = find_torch()
    assert found is not None
    assert found.version.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert (found.folder / "version.py").is_file()


def test_pins() -> None:
    pins = parse_pins(
        ['nvidia-nccl-cu12==2.27.3; platform_system == "Linux"', "nvidia-cudnn-cu12==9.10.2.21", "sympy>=1.13.3"]
    )
    assert pins == {"nvidia-nccl-cu12": "2.27.3", "nvidia-cudnn-cu12": "9.10.2.21"}
    [wrong] = versions.judge_pins({"nvidia-nccl-cu12": ("2.27.3", "2.21.5"), "nvidia-cudnn-cu12": ("9.1", "9.1")})
    assert wrong.severity is WARN and "is 2.21.5, and torch was built with 2.27.3" in wrong.summary
    assert versions.judge_pins({"nvidia-nccl-cu12": ("2.27.3", None)})[0].severity is OK
    assert versions.judge_pins({}) == []


def test_libraries_in_front_of_torchs_own(tmp_path: Path) -> None:
    module, own = tmp_path / "cuda" / "lib64", tmp_path / "site-packages" / "nvidia"
    for folder, name in (
        (module, "libnccl.so.2.18.1"),
        (module, "libcudart.so.11.0"),
        (module, "libfoo.so"),
        (own, "libnccl.so.2"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (module / "libnccl.so.2").symlink_to("libnccl.so.2.18.1")
    environ = {"LD_LIBRARY_PATH": f"{own}:{module}:/no/such/folder:", "LD_PRELOAD": f"{module}/libcudart.so.11.0"}
    found = {shadow.library: shadow for shadow in libraries.find_shadows(environ, [str(own)])}
    assert set(found) == {"libcudart.so.11.0", "libnccl.so.2"}
    assert found["libcudart.so.11.0"].variable == "LD_PRELOAD"
    remark = libraries.judge(found["libnccl.so.2"], CUDA)
    assert remark.severity is WARN and "libnccl.so.2.18.1" in remark.summary and "LD_LIBRARY_PATH" in remark.advice
    assert libraries.judge(found["libnccl.so.2"], CPU).severity is NOTE
    assert libraries.find_shadows({}, []) == []


# Ports, folders -------------------------------------------------------------------------------------------------


def test_who_listens() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0\n"
        "   1: 0100007F:733C 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0\n"
        "   2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0 100 0\n"
    )
    assert ports.parse_listeners(text, 29500) == {4242}


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "needed", "severity"),
    [(10 * GIB, 9 * GIB, OK), (10 * GIB, 10 * GIB, WARN), (GIB, 0, OK), (None, 10 * GIB, OK), (0, GIB, WARN)],
)
def test_room_for_a_checkpoint(free: int | None, needed: int, severity: Severity) -> None:
    assert folders.judge_room_for("/out", free, needed, "/out/ckpt_10.pt").severity is severity


@pytest.mark.parametrize(
    ("free", "total", "is_full"),
    [(0, 100 * GIB, True), (GIB - 1, 100 * GIB, True), (GIB, 100 * GIB, False), (GIB // 2, GIB, False), (0, 0, False)],
)
def test_full_disks(free: int, total: int, is_full: bool) -> None:
    assert (folders.judge_room("/tmp", "/", free, total) is not None) is is_full


def test_an_image_has_no_room_and_needs_none() -> None:
    answers = Answers([Room("/work", "/", 0, GIB), Room("/tmp", "/tmp", GIB, GIB)], {})
    assert [one.severity for one in folders.of_disks(answers)] == [WARN]
    assert [one.severity for one in folders.of_disks(answers, {"/"})] == [OK]


# GPUs -----------------------------------------------------------------------------------------------------------

HEALTHY: dict[str, Value] = {
    "index": 0,
    "model": "H100",
    "is_lost": False,
    "recovery_action": "none",
    "remap_failed": False,
    "remap_pending": False,
    "ecc_volatile_uncorrected": 0,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "nvlink_active": 18,
    "nvlink_inactive": "",
    "temperature_c": 40,
    "temperature_slowdown_c": 87,
    "holders": "",
    "memory_used_bytes": 500 << 20,
}


def readout(changes: dict[str, Value] | None = None, node: dict[str, Value] | None = None) -> Readout:
    """One GPU; and what the node says of all."""
    samples = [
        Sample(subject="gpu:GPU-a", name=name, value=value) for name, value in {**HEALTHY, **(changes or {})}.items()
    ]
    samples += [Sample(subject="node", name=name, value=value) for name, value in (node or {}).items()]
    return Readout(sensor="gpu", at_s=0.0, samples=samples)


@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({}, OK, "1 GPU (H100) present and healthy"),
        ({"is_lost": True}, REFUSE, "GPU 0 (H100) has fallen off the bus"),
        ({"recovery_action": "gpu_reset"}, REFUSE, "gpu reset"),
        ({"recovery_action": "drain_p2p"}, WARN, "drain p2p"),
        ({"remap_failed": True}, REFUSE, "bad memory row"),
        ({"remap_pending": True}, WARN, "next reset"),
        ({"ecc_volatile_uncorrected": 2}, WARN, "2 memory errors"),
        ({"ecc_sram_threshold_exceeded": True}, REFUSE, "SRAM"),
        ({"pcie_width": 8}, WARN, "8 PCIe lanes of 16"),
        ({"nvlink_inactive": "3,4"}, WARN, "NVLink 3,4 is down"),
        ({"nvlink_inactive": "0,1", "nvlink_active": 0}, OK, "healthy"),
        ({"temperature_c": 88}, WARN, "88 °C"),
    ],
)
def test_health(changes: dict[str, Value], severity: Severity, said: str) -> None:
    [remark] = gpu_health.judge_health(readout(changes))
    assert remark.severity is severity and said in remark.summary


def test_gpus_that_are_not_shown() -> None:
    [missing, unusable] = gpu_health.judge_health(
        readout(node={"gpus_missing": "0000:3b:00", "gpus_unusable": "2: GPU is lost"})
    )
    assert missing.severity is unusable.severity is REFUSE
    assert "0000:3b:00" in missing.summary and "2: GPU is lost" in unusable.summary


def test_a_driver_that_hangs_or_is_slow_to_come_up() -> None:
    hanging = Readout(sensor="gpu", at_s=0.0, trouble="NVML's call has not returned within 2 s", is_silent=True)
    slow = Readout(sensor="gpu", at_s=0.0, trouble="NVML is being initialised")
    assert [one.severity for one in gpu_health.judge_health(hanging)] == [WARN]
    [remark] = gpu_health.judge_health(slow)
    assert remark.severity is NOTE and "Persistence mode" in remark.advice


def named(pid: int) -> Holder:
    names = {7: "/usr/bin/nv-hostengine -n", 8: "python train.py"}
    return Holder(pid, "alice" if pid == 8 else "", names.get(pid, ""))


@pytest.mark.parametrize(
    ("changes", "severities", "said"),
    [
        ({}, [OK], "Nobody else"),
        ({"holders": f"8={30 * GIB}"}, [WARN], "python train.py (pid 8, of alice) holds 30 GiB of memory of GPU 0"),
        ({"holders": "8=?"}, [WARN], "holds memory of"),
        ({"holders": f"8={100 << 20}"}, [NOTE], "100 MiB"),
        ({"holders": f"7={30 * GIB}"}, [OK], "Nobody else"),
        ({"holders": f"9={GIB}"}, [WARN], "a process (pid 9)"),
        ({"memory_used_bytes": 30 * GIB}, [WARN], "by nobody that can be seen"),
        ({"holders": "nonsense"}, [OK], "Nobody else"),
    ],
)
def test_strangers(changes: dict[str, Value], severities: list[Severity], said: str) -> None:
    remarks: list[Remark] = gpu_health.judge_memory(gpu_health.gpus_of(readout(changes)), named)
    assert [one.severity for one in remarks] == severities and said in remarks[0].summary


def test_the_hosts_process_ids_name_nobody_in_a_container() -> None:
    """Ours is another process there: it must not be the one that somebody is told to end."""
    inside: dict[str, Value]
    outside: dict[str, Value]
    inside, outside = [{"pid_namespace": inode} for inode in (4026532000, INITIAL_PID_NAMESPACE)]
    pid = os.getpid()
    assert gpu_health.reader_of(readout(node=inside))(pid) == Holder(pid, "", "a process as the host counts")
    assert gpu_health.reader_of(readout(node=outside))(pid) == gpu_health.read_holder(pid)
    assert gpu_health.reader_of(readout())(pid) == gpu_health.read_holder(pid)


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1,0", [1, 0]),
        ("GPU-c", [2]),
        ("0,9,1", [0]),
        ("-1", []),
    ],
)
def test_the_devices_that_a_run_sees(chosen: str | None, seen: list[int]) -> None:
    gpus = [gpu_health.Gpu(f"GPU-{letter}", {"index": index}) for index, letter in enumerate("abc")]
    assert [gpu.index for gpu in gpu_health.visible(gpus, chosen)] == seen
