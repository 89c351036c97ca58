from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host import oom_kills
from guardrun.supervisor.collect.host.oom_kills import (
    KernelLog,
    MemoryMount,
    OomWatch,
    counter_paths,
    find_oom_counter,
    parse_cgroup,
    parse_mountinfo,
    parse_oom_kills,
    parse_oom_pid,
)
from tests.support.memorygroup import EATER, memory_group

HYBRID = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
short
"""


def test_counters_are_read_from_each_kind_of_file() -> None:
    assert parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert parse_oom_kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n") == 2
    assert parse_oom_kills("oom_kill_disable 0\n") == -1
    assert parse_oom_kills("") == -1


def test_the_nearest_counter_comes_first_and_the_containers_root_is_cut_off() -> None:
    mounts = parse_mountinfo(HYBRID)
    assert mounts == [
        MemoryMount("/docker/abc", "/sys/fs/cgroup/memory", 1),
        MemoryMount("/", "/sys/fs/cgroup/unified", 2),
    ]
    cgroups = parse_cgroup("4:memory:/docker/abc/job/step\n3:cpuset:/x\n0::/user.slice\nnonsense\n")
    assert cgroups == {1: "/docker/abc/job/step", 2: "/user.slice"}
    assert counter_paths(cgroups, mounts) == [
        "/sys/fs/cgroup/memory/job/step/memory.oom_control",
        "/sys/fs/cgroup/memory/job/memory.oom_control",
        "/sys/fs/cgroup/memory/memory.oom_control",
        "/sys/fs/cgroup/unified/user.slice/memory.events",
        "/sys/fs/cgroup/unified/memory.events",
    ]
    assert counter_paths({}, mounts) == []


@pytest.mark.parametrize(
    ("record", "pid"),
    [
        ("6,1,2,-;Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:2kB", 4242),
        ("3,1,2,-;Memory cgroup out of memory: Killed process 77 (a) b) total-vm:1kB", 77),
        ("3,1,2,-;Out of memory: Kill process 78 (x) score 9 or sacrifice child", 78),
        ("3,1,2,-;Out of memory (oom_kill_allocating_task): Killed process 79 (x) total", 79),
        ("6,1,2,-;oom_reaper: reaped process 80 (x), now anon-rss:0kB", -1),
        ("6,1,2,-;user says: killed process 3", -1),
        ("", -1),
    ],
)
def test_the_kernels_words_for_a_kill(record: str, pid: int) -> None:
    assert parse_oom_pid(record) == pid


def test_a_kernel_log_that_may_not_be_read_names_nobody(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert not log.is_readable
    assert log.read_oom_pids() == []
    log.close()


def test_a_process_that_is_gone_has_the_machines_counter() -> None:
    assert find_oom_counter(1 << 22) == "/proc/vmstat"


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    with memory_group() as path:
        yield path


@pytest.mark.real("memory cgroup")
def test_a_kill_by_the_kernel_is_counted_and_named(memory_cgroup: Path) -> None:
    eater = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE)
    log = KernelLog()
    watch = OomWatch(log)
    try:
        (memory_cgroup / "cgroup.procs").write_text(str(eater.pid))
        watch.attempt_started([eater.pid])
        assert watch.kills() == 0
        # The kernel's log is the whole machine's: another test's processes may be in it, too.
        assert eater.pid not in watch.pids()
        assert str(memory_cgroup) in oom_kills.find_oom_counter(eater.pid)
        eater.communicate(b"go\n")
        assert eater.returncode == -9
        assert watch.kills() == 1
        if log.is_readable:
            assert watch.pids().count(eater.pid) == watch.pids().count(eater.pid) == 1
        watch.attempt_started([])
        assert watch.kills() == 0
        assert eater.pid not in watch.pids()
    finally:
        eater.kill()
        eater.wait()
        watch.close()
