"""What the host's sensors make of files of /proc and /sys: whole ones, cut ones, ones that are not there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.file_systems import Answers, Mount, Room, parse_mountinfo
from guardrun.supervisor.collect.host.procfs import Stat
from guardrun.supervisor.health.base.readings import Readout, Sample, Value
from guardrun.supervisor.sensors.base.sensor import Sensor, parse_count, read_text
from guardrun.supervisor.sensors.catalog import host_sensors
from guardrun.supervisor.sensors.host.cgroup import CgroupSensor, groups_of, parse_cpu_stat, parse_hierarchies
from guardrun.supervisor.sensors.host.clock import Clocks, ClockSensor, Discipline, read_clocks, step_between
from guardrun.supervisor.sensors.host.cpu import CpuSensor, parse_stat
from guardrun.supervisor.sensors.host.disks import (
    AT_A_TURN,
    DisksSensor,
    MountsSensor,
    local_filesystems,
    of_answers,
    parse_diskstats,
)
from guardrun.supervisor.sensors.host.kernel_log import RULES, LineReader, parse_record
from guardrun.supervisor.sensors.host.memory import MemorySensor, PressureSensor, parse_pressure
from guardrun.supervisor.sensors.host.processes import follow, parse_file_nr, parse_threads
from guardrun.supervisor.sensors.network.infiniband import InfinibandSensor, parse_rate, parse_state
from guardrun.supervisor.sensors.network.interfaces import parse_default_routes, parse_default_routes6
from guardrun.supervisor.sensors.network.rtnetlink import parse_link, parse_messages


def lay(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


def values(samples: list[Sample], subject: str) -> dict[str, Value | None]:
    return {sample.name: sample.value for sample in samples if sample.subject == subject}


def cpu_files(number: int, package: int, core: int, count: int) -> dict[str, str]:
    folder = f"/sys/devices/system/cpu/cpu{number}"
    return {
        f"{folder}/topology/physical_package_id": f"{package}\n",
        f"{folder}/topology/core_id": f"{core}\n",
        f"{folder}/thermal_throttle/core_throttle_count": f"{count}\n",
        f"{folder}/thermal_throttle/package_throttle_count": "40\n",
        f"{folder}/thermal_throttle/package_throttle_total_time_ms": "1500\n",
        f"{folder}/cpufreq/scaling_cur_freq": f"{1_000_000 + number * 1000}\n",
        f"{folder}/cpufreq/cpuinfo_max_freq": "3600000\n",
    }


STAT = "cpu  1000 200 300 5000 100 10 20 400 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n"


def test_cpus_of_two_packages_with_hardware_threads(tmp_path: Path) -> None:
    files = {"/proc/stat": STAT, "/sys/devices/system/cpu/cpu9/online": "0\n", "/sys/devices/system/cpu/cpufreq/x": ""}
    for number, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (0, 0)]):
        files |= cpu_files(number, package, core, 10)
    readout = CpuSensor(lay(tmp_path, files)).read(5.0)
    assert values(readout.samples, "cpu") == {"cpus": 2, "busy_s": 15.3, "idle_s": 51.0, "steal_s": 4.0}
    assert values(readout.samples, "cpu:0") == {
        "core_throttle_count": 20,
        "throttle_count": 40,
        "throttled_s": 1.5,
        "frequency_hz": 1_000_500_000,
        "frequency_max_hz": 3_600_000_000,
    }
    assert values(readout.samples, "cpu:1")["core_throttle_count"] == 10


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2", "cpu a b c d e f g h", "\0\0"])
def test_a_stat_that_says_nothing(text: str) -> None:
    assert parse_stat(text) == []


def test_what_is_not_there_is_unknown_with_the_reason(tmp_path: Path) -> None:
    """An empty root: a container that shows nothing, a kernel without this or that."""
    kinds = (CpuSensor, PressureSensor, MemorySensor, CgroupSensor, DisksSensor, InfinibandSensor)
    sensors: list[Sensor] = [kind(str(tmp_path)) for kind in kinds]
    for sensor in sensors:
        readout = sensor.read(1.0)
        assert all(sample.value is None and sample.trouble for sample in readout.samples)
        if sensor.name != "infiniband":  # No device is no trouble.
            assert "is not there" in readout.trouble, sensor.name
        sensor.close()


def test_every_sensor_reads_this_machine() -> None:
    for sensor in host_sensors():
        if sensor.name == "mounts":
            continue  # Of whatever remote mounts this machine has, any may be dead.
        readout = sensor.read(100.0)
        assert isinstance(readout, Readout) and readout.sensor == sensor.name
        assert sensor.period_s >= 10 and sensor.timeout_s <= 10, "cheap, and soon known to be silent"
        assert all(sample.trouble for sample in readout.samples if sample.value is None)
        sensor.close()


def test_pressure() -> None:
    text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=2500000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1000\n"
    assert values(parse_pressure("io", text), "io") == {
        "stalled_some_s": 2.5,
        "stalled_some_ratio": 0.125,
        "stalled_full_s": 0.001,
        "stalled_full_ratio": 0.005,
    }
    assert parse_pressure("io", "nonsense\nsome total=x\n") == []


def test_memory(tmp_path: Path) -> None:
    meminfo = "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"
    root = lay(tmp_path, {"/proc/meminfo": meminfo, "/proc/vmstat": "pgfault 5\noom_kill 3\n"})
    assert values(MemorySensor(root).read(1.0).samples, "memory") == {
        "available_bytes": 1 << 20,
        "total_bytes": 2 << 20,
        "swap_used_bytes": 60 * 1024,
        "swap_total_bytes": 100 * 1024,
        "oom_kills": 3,
    }


V1 = """
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""
V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_groups_of_version_1(tmp_path: Path) -> None:
    cgroup = "8:pids:/job\n4:memory:/docker/x/job\n1:cpu,cpuacct:/job/step\n0::/\n"
    root = lay(
        tmp_path,
        {
            "/proc/self/mountinfo": V1,
            "/proc/7/cgroup": cgroup,
            "/sys/fs/cgroup/cpu/job/cpu.stat": "nr_periods 50\nnr_throttled 20\nthrottled_time 3000000000\n",
            "/sys/fs/cgroup/cpu/job/step/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "900\n",
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n",
            "/sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/pids/job/pids.current": "12\n",
            "/sys/fs/cgroup/pids/job/pids.max": "100\n",
        },
    )
    readout = CgroupSensor(root, lambda: [7, 7, 8]).read(1.0)
    assert {sample.subject for sample in readout.samples} == {"cgroup:/job"}
    assert values(readout.samples, "cgroup:/job") == {
        "periods": 50,
        "throttled_periods": 20,
        "throttled_s": 3.0,
        "memory_bytes": 900,
        "memory_bytes_limit": 1000,
        "oom_kills": 2,
        "threads": 12,
        "threads_limit": 100,
    }


def test_groups_of_version_2(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/job.slice"
    root = lay(
        tmp_path,
        {
            "/proc/self/mountinfo": V2,
            "/proc/7/cgroup": "0::/job.slice/step\n",
            f"{folder}/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 9\nthrottled_usec 500000\n",
            f"{folder}/memory.current": "5\n",
            f"{folder}/memory.max": "max\n",
            f"{folder}/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
            f"{folder}/pids.max": "max\n",
            f"{folder}/step/cpu.stat": "usage_usec 5\n",
        },
    )
    readout = CgroupSensor(root, lambda: [7]).read(1.0)
    assert values(readout.samples, "cgroup:/job.slice") == {
        "periods": 10,
        "throttled_periods": 9,
        "throttled_s": 0.5,
        "oom_kills": 1,
    }
    assert {sample.subject for sample in readout.samples} == {"cgroup:/job.slice"}


def test_groups_that_cannot_be() -> None:
    assert groups_of("", parse_hierarchies(V1)) == [] == groups_of("0::/", [])
    deep = groups_of("0::/" + "a/" * 200 + "../..", parse_hierarchies(V2))
    assert len(deep) < 50 and all(".." not in group.folder for group in deep)
    assert parse_cpu_stat("cgroup:/x", "nr_periods many\nnr_throttled\n") == []


def stat(pid: int, state: str, ppid: int = 1, start: int = 5) -> Stat:
    return Stat(pid=pid, comm=f"p{pid}", state=state, ppid=ppid, cpu_s=0.0, start=start)


def test_who_waits_and_since_when() -> None:
    first = follow({}, [stat(10, "D"), stat(11, "S"), stat(12, "D", ppid=2), stat(2, "D")], 100.0)
    assert [(key, waiting.since_s) for key, waiting in first.items()] == [((10, 5), 100.0)]
    later = follow(first, [stat(10, "D"), stat(11, "D")], 130.0)
    assert [waiting.since_s for waiting in later.values()] == [100.0, 130.0]
    assert follow(later, [stat(10, "D", start=6), stat(11, "R")], 160.0)[10, 6].since_s == 160.0


def test_limits() -> None:
    assert values(parse_file_nr("1000 100 5000\n"), "processes") == {"open_files": 900, "open_files_limit": 5000}
    assert parse_file_nr("1 2") == parse_file_nr("a b c") == []
    assert parse_threads("0.1 0.2 0.3 2/345 999\n") == 345
    assert parse_threads("") is parse_threads("1 2 3 4 5") is None


DISKSTATS = """
   8       0 sda 100 0 800 10 50 0 400 20 3 1500 90 0 0 0 0 7 1
   8       1 sda1 1 0 8 1 1 0 8 1 0 10 2 0 0 0 0
 259       0 nvme0n1 10 0 80 1 5 0 40 2 0 20 9 4 0 0 0 1 1
   7       0 loop0 1 1 1 1 1 1 1 1 1 1 1
  11       0 sr0 1 1 1
 cut short
"""
MOUNTINFO = """
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
40 22 8:1 /x /bind rw,relatime - ext4 /dev/sda1 rw
41 22 259:1 / /scratch rw,relatime - xfs /dev/nvme0n1p1 ro,attr2
42 22 0:50 / /data rw - nfs4 filer:/export rw
46 22 0:70 / /var/lib/kubelet/pods/p/volumes/v rw - tmpfs tmpfs rw
43 22 7:0 / /snap/x ro - squashfs /dev/loop0 ro
44 22 0:60 / /var/lib/docker/overlay2/m rw - overlay overlay rw
45 22 0:61 / /proc rw - proc proc rw
"""


def test_disks_and_their_file_systems(tmp_path: Path) -> None:
    for name in ("scratch", "data"):
        (tmp_path / name).mkdir()
    root = lay(
        tmp_path,
        {
            "/proc/self/mountinfo": MOUNTINFO,
            "/proc/diskstats": DISKSTATS,
            "/sys/block/sda/ro": "0\n",
            "/sys/block/sda/device/ioerr_cnt": "0x1f\n",
            "/sys/block/nvme0n1/ro": "0\n",
        },
    )
    samples = DisksSensor(root).read(1.0).samples
    assert values(samples, "disk:sda") == {
        "completed": 157,
        "in_flight": 3,
        "busy_s": 1.5,
        "is_read_only": False,
        "io_errors": 31,
    }
    assert values(samples, "disk:nvme0n1")["completed"] == 20
    assert {sample.subject for sample in samples} == {"disk:sda", "disk:nvme0n1", "mount:/", "mount:/scratch"}
    assert values(samples, "mount:/scratch")["is_read_only"] is True
    assert values(samples, "mount:/")["is_read_only"] is False
    assert parse_diskstats("1 2 sda a b c d e f g h i j k") == []
    assert [mount.point for mount in local_filesystems(parse_mountinfo(MOUNTINFO))] == ["/", "/scratch"]


def test_remote_mounts_take_turns_and_the_dead_come_first() -> None:
    mounts = [Mount(f"/nfs{number}", "nfs4", "filer:/x") for number in range(6)] + [Mount("/", "ext4", "/dev/sda")]
    sensor = MountsSensor(lambda: mounts)
    points = [f"/nfs{number}" for number in range(6)]
    seen = [sensor._choose(points) for _ in range(3)]
    assert [len(chosen) for chosen in seen] == [AT_A_TURN] * 3
    assert {point for chosen in seen for point in chosen} == set(points)
    sensor._dead = {"/nfs5"}
    assert sensor._choose(points)[0] == "/nfs5"
    answers = Answers([Room("/nfs0", "/nfs0", 10, 100)], {"/nfs5": 12.5})
    assert values(of_answers(answers), "mount:/nfs5") == {"is_answering": False, "asked_s": 12.5}
    assert values(of_answers(answers), "mount:/nfs0") == {"is_answering": True, "free_bytes": 10, "total_bytes": 100}


def test_infiniband(tmp_path: Path) -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    root = lay(
        tmp_path,
        {
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/phys_state": "5: LinkUp\n",
            f"{port}/rate": "400 Gb/sec (4X NDR)\n",
            f"{port}/link_layer": "InfiniBand\n",
            f"{port}/counters/link_downed": "2\n",
            f"{port}/counters/symbol_error": "N/A (no PMA)\n",
            f"{port}/hw_counters/out_of_sequence": "7\n",
            "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "/sys/class/infiniband/mlx5_1/ports/2/phys_state": "3: Disabled\n",
        },
    )
    samples = InfinibandSensor(root).read(1.0).samples
    assert values(samples, "ib:mlx5_0/1") == {
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_bps": 400_000_000_000,
        "link_layer": "InfiniBand",
        "link_downed": 2,
        "out_of_sequence": 7,
    }
    assert values(samples, "ib:mlx5_1/1")["state"] == "DOWN"
    assert values(samples, "ib:mlx5_1/2") == {"state": None}
    assert (parse_rate(""), parse_rate("x Gb/sec"), parse_state("odd")) == (0, 0, "odd")


def test_a_clock_that_jumps_and_a_machine_that_slept() -> None:
    moments = iter([Clocks(1000.0, 50.0), Clocks(1010.0, 60.0), Clocks(1020.2, 70.0), Clocks(4620.0, 80.0)])
    sensor = ClockSensor(lambda: next(moments), lambda: Discipline(True, 0.001, 1e12))
    readouts = [sensor.read(float(number)) for number in range(4)]
    assert [len(readout.happenings) for readout in readouts] == [0, 0, 0, 1]
    (step,) = readouts[3].happenings
    assert step.data["step_s"] == pytest.approx(3589.8) and step.text == "the wall clock was set forward by 3589.8 s"
    max_error = next(sample for sample in readouts[0].samples if sample.name == "max_error_s")
    assert max_error.value is None and max_error.trouble
    # Suspended for an hour: both clocks went on.
    assert step_between(Clocks(0.0, 0.0), Clocks(3600.9, 3600.0)) == 0.0
    assert step_between(Clocks(0.0, 0.0), Clocks(-100.0, 1.0)) == -101.0
    assert step_between(read_clocks(), read_clocks()) == 0.0


def test_a_sandbox_that_forbids_adjtimex(tmp_path: Path) -> None:
    def refuse() -> Discipline:
        raise PermissionError(1, "Operation not permitted")

    samples = ClockSensor(discipline=refuse, timesync=str(tmp_path / "none")).read(1.0).samples
    assert {sample.trouble for sample in samples} == {"adjtimex: Operation not permitted"}
    samples = ClockSensor(discipline=refuse, timesync=str(tmp_path)).read(1.0).samples
    assert values(samples, "clock") == {"offset_s": None, "is_synchronized": True}


def attribute(kind: int, data: bytes) -> bytes:
    padded = data + b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + padded


def link_message(kind: int, flags: int, name: bytes = b"eth7\0", changes: int = 3) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 9, flags, 0) + attribute(3, name) + attribute(35, struct.pack("=I", changes))
    body += attribute(23, struct.pack("=8Q", *range(8)))
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_links_over_rtnetlink() -> None:
    up = 0x1 | 0x40 | 0x10000
    data = link_message(16, up) + link_message(16, 0x1) + link_message(17, 0)
    links = [parse_link(message) for message in parse_messages(data)]
    assert [(link.name, link.is_up, link.is_enabled, link.is_gone) for link in links if link] == [
        ("eth7", True, True, False),
        ("eth7", False, True, False),
        ("eth7", False, False, True),
    ]
    assert links[0] is not None and links[0].carrier_changes == 3 and links[0].stats == tuple(range(8))
    for cut in range(len(data)):
        assert len(list(parse_messages(data[:cut]))) <= 3
        [parse_link(message) for message in parse_messages(data[:cut])]
    assert list(parse_messages(struct.pack("=IHHII", 3, 16, 0, 0, 0))) == []


def test_default_routes() -> None:
    text = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "cut\t00000000\n"
    )
    assert parse_default_routes(text) == {"eth0"}
    none, some = "0" * 32, "fe80" + "0" * 28
    text6 = "".join(
        f"{to} {length} {none} 00 {none} 00000400 00000001 00000000 00000003 {name:>8}\n"
        for to, length, name in ((none, "00", "ib0"), (some, "40", "eth1"), (none, "00", "lo"))
    )
    assert parse_default_routes6(text6 + "cut short") == {"ib0"}


LINES = [
    ("I/O error, dev nvme0n1, sector 512 op 0x0:(READ) flags 0x80700", "io_error", "disk:nvme0n1"),
    ("blk_update_request: critical medium error, dev sda, sector 9 op 0x0:(READ) flags 0x0", "io_error", "disk:sda"),
    ("Buffer I/O error on dev sdb1, logical block 7, lost async page write", "io_error", "disk:sdb1"),
    ("blk_update_request: I/O error, dev fd0, sector 0", None, ""),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "disk_reset", "disk:nvme0"),
    ("nvme nvme3: I/O tag 12 (700c) opcode 0x2 (I/O Cmd) QID 4 timeout, reset controller", "disk_reset", "disk:nvme3"),
    ("nvme nvme0: Removing after probe failure status: -19", "disk_lost", "disk:nvme0"),
    ("ata2.00: exception Emask 0x0 SAct 0x0", None, ""),
    ("ata2: hard resetting link", "disk_reset", "disk:ata2"),
    ("sd 0:0:0:0: [sda] tag#5 rejecting I/O to offline device", "disk_lost", "disk:sda"),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls", "fs_error", "disk:sda1"),
    ("EXT4-fs (dm-0): Remounting filesystem read-only", "fs_read_only", "disk:dm-0"),
    ("XFS (sda2): Filesystem has been shut down due to log error (0x2).", "fs_read_only", "disk:sda2"),
    ("XFS (sda2): metadata I/O error in \"xfs_trans_read_buf_map\" at daddr 0x8", "fs_error", "disk:sda2"),
    ("BTRFS info (device sdc): forced readonly", "fs_read_only", "disk:sdc"),
    ("nfs: server filer not responding, still trying", "server_silent", "server:filer"),
    ("nfs: server filer OK", "server_back", "server:filer"),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4242]", "lockup", "cpu"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 27", "lockup", "cpu"),
    ("watchdog: CPU28: Watchdog detected hard LOCKUP on cpu 28", "lockup", "cpu"),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu_stall", "cpu"),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu_stall", "cpu"),
    ("INFO: task python:4242 blocked for more than 120 seconds.", "hung_task", "processes"),
    ("INFO: task kworker/u8:1:77 blocked for more than 241 seconds.", "hung_task", "processes"),
    ("BUG: unable to handle page fault for address: 0000000000000008", "oops", "node"),
    ("Memory failure: 0x1234: recovery action for dirty LRU page: Recovered", "memory_failure", "memory"),
    ("mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count", "nic_fault",
     "pci:0000:3b:00.0"),
    ("NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 3 timed out", "transmit_timeout", "net:eth0"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus.", "xid", "gpu:0000:3b:00"),
    ("systemd[1]: I/O error, dev sda, sector 5", None, ""),
    ("eth0: renamed from veth1", None, ""),
    ("", None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "subject"), LINES)
def test_lines_of_the_kernels_log(line: str, name: str | None, subject: str) -> None:
    found = LineReader().read(line, 5.0)
    assert (found.name if found else None, found.subject if found else "") == (name, subject)


def test_every_rule_has_a_line() -> None:
    told = {found.name for line, _, _ in LINES if (found := LineReader().read(line, 1.0))}
    assert {rule.name for rule in RULES} - {"mce", "pcie_error"} <= told


@pytest.mark.parametrize(
    ("line", "is_corrected"),
    [
        ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 3: cc5eb2c000100135", True),
        ("mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 5: be00000000800400", False),
        ("[Hardware Error]: Corrected error, no action required.", True),
        ("[Hardware Error]: Uncorrected, software restartable error.", False),
        ("{1}[Hardware Error]: event severity: fatal", False),
        ("{1}[Hardware Error]: event severity: corrected", True),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0)", True),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", False),
        ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", True),
        ("nvme 0000:41:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", False),
    ],
)
def test_whether_the_hardware_made_it_good(line: str, is_corrected: bool) -> None:
    found = LineReader().read(line, 1.0)
    assert found is not None and found.data["is_corrected"] is is_corrected


def test_an_oom_kill_takes_two_lines() -> None:
    reader = LineReader()
    chosen = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
        "task_memcg=/job/step,task=python,pid=15056,uid=0"
    )
    killed = "Memory cgroup out of memory: Killed process 15056 (python) total-vm:61860kB, anon-rss:51840kB"
    assert reader.read(chosen, 1.0) is None
    found = reader.read(killed, 2.0)
    assert found is not None and found.data == {
        "pid": 15056,
        "task": "python",
        "is_whole_machine": False,
        "cgroup": "/job/step",
    }
    other = reader.read("Out of memory: Killed process 7 (a (b) c) total-vm:1kB", 3.0)
    assert other is not None and other.data == {"pid": 7, "task": "a (b) c", "is_whole_machine": True}


def test_records_and_counts() -> None:
    record = parse_record("3,1148,4568110517,-,caller=T1;a; message\n SUBSYSTEM=block\n DEVICE=b8:0\n")
    assert record is not None and (record.priority, record.sequence, record.message) == (3, 1148, "a; message")
    assert parse_record("no record") is parse_record("a,b,c;d") is parse_record("") is None
    assert [parse_count(text) for text in ("12", "0x1f\n", "-3", "", "x", "1 2")] == [12, 31, -3, None, None, None]
    assert read_text("/nowhere/at/all") == ("", "/nowhere/at/all is not there")
