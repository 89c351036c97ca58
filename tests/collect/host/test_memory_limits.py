"""Of all limits of memory that hold for a process the one with least room counts, without what can be given back."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.memory_limits import Limit, MemoryLimits, of_node, own_limits
from guardrun.supervisor.collect.ranks.memory_use import read_sizes
from tests.support.memorygroup import memory_group

GIB = 1 << 30
NODE = f"MemTotal: {64 << 20} kB\nMemFree: 100 kB\nMemAvailable: {40 << 20} kB\nCached: 5 kB\n"
V2 = "30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:28 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
PID = 77

Lay = Callable[..., MemoryLimits]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """A /proc and a /sys as they are somewhere."""

    def lay(mountinfo: str, cgroup: str, files: dict[str, object]) -> MemoryLimits:
        texts = {"proc/self/mountinfo": mountinfo, f"proc/{PID}/cgroup": cgroup, "proc/meminfo": NODE}
        for name, text in (texts | {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return MemoryLimits(str(tmp_path))

    return lay


def test_a_node_without_control_groups(lay: Lay) -> None:
    assert lay("", "", {}).nearest(PID, {}) == Limit(64 * GIB, 24 * GIB)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"job/step/memory.max": "max", "job/memory.max": "max"}, Limit(64 * GIB, 24 * GIB), id="none"),
        pytest.param({"job/memory.max": 32 * GIB}, Limit(32 * GIB, 14 * GIB), id="of the group above"),
        pytest.param(
            {"job/memory.max": 32 * GIB, "job/memory.high": 30 * GIB}, Limit(30 * GIB, 14 * GIB), id="held up before"
        ),
        pytest.param(
            {"job/memory.max": 32 * GIB, "job/step/memory.max": 31 * GIB}, Limit(32 * GIB, 14 * GIB), id="least room"
        ),
        pytest.param(
            {"job/memory.max": 32 * GIB, "job/step/memory.max": 24 * GIB}, Limit(24 * GIB, 8 * GIB), id="of its own"
        ),
        pytest.param({"job/memory.max": 100 * GIB}, Limit(64 * GIB, 24 * GIB), id="more than there is"),
    ],
)
def test_control_groups_of_version_2(lay: Lay, files: dict[str, object], expected: Limit) -> None:
    stat = f"anon 1\nfile 9\ninactive_file {3 * GIB}\nactive_file {2 * GIB}\nslab_reclaimable {GIB}\nslab 8"
    use = {"job/memory.current": 20 * GIB, "job/memory.stat": stat, "job/step/memory.current": 8 * GIB}
    assert lay(V2, "0::/job/step\n", use | files).nearest(PID, {}) == expected


def test_control_groups_of_version_1_in_a_container(lay: Lay) -> None:
    """A group that is no limit has a number beyond all memory; what is below counts with what is above it."""
    files = {
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 50 * GIB,
        "memory/a/memory.limit_in_bytes": 16 * GIB,
        "memory/a/memory.usage_in_bytes": 12 * GIB,
        "memory/a/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file {2 * GIB}",
    }
    assert lay(V1, "4:memory:/box/a\n3:cpu:/x\n", files).nearest(PID, {}) == Limit(16 * GIB, 9 * GIB)


def test_limits_of_the_process_itself() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             2147483648           unlimited            bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n"
    )
    assert own_limits(text, {"VmData": GIB, "VmSize": 9 * GIB}) == [Limit(2 * GIB, GIB)]
    assert own_limits(text, {}) == own_limits("", {"VmData": 1}) == []


def test_a_kernel_that_does_not_say_what_is_available_says_nothing() -> None:
    assert of_node("MemTotal: 5 kB\nMemFree: 2 kB\n") is None


def test_a_process_with_a_limit_of_its_own() -> None:
    """This one has another, or none."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, -1)); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        limits = MemoryLimits()
        limit = limits.nearest(process.pid, {process.pid: read_sizes(process.pid)})
        assert limit is not None and limit.limit == 1 << 29 and 0 < limit.used < 1 << 28
        below = limits.nearest(os.getpid(), {os.getpid(): {}, process.pid: read_sizes(process.pid)})
        assert below is not None and below.limit == 1 << 29, "of what is below a process, too"
        own = limits.nearest(os.getpid(), {os.getpid(): read_sizes(os.getpid())})
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 29 or (own is not None and own.limit != 1 << 29)
    finally:
        process.communicate(b"\n")


@pytest.mark.real("memory cgroup")
def test_a_real_group() -> None:
    """Page cache of a file that was just written is none of what is used."""
    code = (
        "import sys\nsys.stdin.readline()\nfat = b'x' * (20 << 20)\n"
        "import tempfile\nfile = tempfile.NamedTemporaryFile(dir=sys.argv[1])\nfile.write(fat)\nfile.flush()\n"
        "print(flush=True)\nsys.stdin.readline()"
    )
    here = str(Path(__file__).parent)
    with memory_group(96 << 20) as group:
        command = [sys.executable, "-S", "-c", code, here]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            process.stdin.write(b"go\n")
            process.stdin.flush()
            process.stdout.readline()
            limit = MemoryLimits().nearest(process.pid, {})
            assert limit is not None and limit.limit == 96 << 20
            assert 20 << 20 <= limit.used < 36 << 20, "20 MiB of its own, and as much of the file's that is no use"
        finally:
            process.communicate(b"end\n")
