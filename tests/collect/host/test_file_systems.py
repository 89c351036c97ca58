"""Mounts: which one a path lies on, what a file system says of itself, and one that never answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.blocked_calls import explain
from guardrun.supervisor.collect.host.file_systems import (
    Mount,
    ask,
    mount_of,
    mounts_used_by,
    parse_answers,
    parse_mountinfo,
    read_mounts,
)
from guardrun.supervisor.collect.host.procfs import is_timed, parse_syscall, read_stat
from guardrun.supervisor.engine.model.looks import ProcessLook
from tests.support.deadmount import dead_mount
from tests.support.processes import descendants, is_alive
from tests.support.waiting import wait_until

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
40 22 0:50 / /data rw,relatime shared:7 master:1 - nfs4 filer:/export/data rw,vers=4.2,addr=10.0.0.9
41 40 0:51 / /data/my\040runs rw - fuse.sshfs ada@host:/a\011b rw
42 22 0:52 / /data rw - tmpfs tmpfs rw
cut short
43 22 0:53 /
"""
MOUNTS = parse_mountinfo(MOUNTINFO)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        yield folder


def test_mountinfo() -> None:
    assert [(m.point, m.kind, m.source) for m in MOUNTS] == [
        ("/", "ext4", "/dev/vda"),
        ("/proc", "proc", "proc"),
        ("/data", "nfs4", "filer:/export/data"),
        ("/data/my runs", "fuse.sshfs", "ada@host:/a\tb"),
        ("/data", "tmpfs", "tmpfs"),
    ]
    assert [m.is_kernels_own for m in MOUNTS] == [False, True, False, False, False]
    assert any(mount.point == "/" for mount in read_mounts())


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "ext4"), ("/etc/x", "ext4"), ("/data", "tmpfs"), ("/data/my runs/a", "fuse.sshfs"), ("/database", "ext4")],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    mount = mount_of(path, MOUNTS)
    assert mount is not None and mount.kind == kind
    assert mount_of("/x", [Mount("/y", "ext4", "")]) is None


@pytest.mark.parametrize(
    ("data", "rooms", "at"),
    [
        (b"", 0, ""),
        (b"at\0/data/x\0\0is\0/data/x\0/data\0005\0009\0\0", 1, "/data/x"),
        (b"at\0/a\0\0at\0/b", 0, "/a"),
        (b"is\0/data\0/data\0-5\0x\0\0nonsense\0\0\xff\xfe\0\0", 0, ""),
        (b"no\0/data\0Permission denied\0\0", 0, ""),
    ],
)
def test_answers_that_are_cut_short_or_nonsense(data: bytes, rooms: int, at: str) -> None:
    found, last = parse_answers(data, MOUNTS)
    assert (len(found), last) == (rooms, at)


def test_a_link_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/../real")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "caf\udce9").mkdir()
    paths = [f"{tmp_path}/link/x/y", f"{tmp_path}/loop", f"{tmp_path}/caf\udce9", "/dev/shm/../shm", "a\0b"]
    answers = ask(paths, 60.0)
    assert {room.path for room in answers.rooms} == set(paths[:4])
    assert answers.dead == {}
    shm = next(room for room in answers.rooms if "shm" in room.path)
    assert shm.total_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize


@pytest.mark.real("fuse")
def test_a_mount_that_does_not_answer_is_named_whatever_led_there(dead: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(dead / "below")
    # On a busy machine those who ask need longer to begin, and more is called dead that is not.
    for timeout_s in (0.7, 5.0, 30.0):
        began = time.monotonic()
        answers = ask([str(link / "checkpoints"), "/dev/shm"], timeout_s)
        assert timeout_s <= time.monotonic() - began < timeout_s + 30
        if list(answers.dead) == [str(dead)] and answers.rooms:
            break
    assert list(answers.dead) == [str(dead)]
    assert [room.path for room in answers.rooms] == ["/dev/shm"]
    assert list(ask([str(dead)], 0.3).dead) == [str(dead)]


@pytest.mark.real("fuse")
def test_who_asks_for_somebody_that_is_killed_ends_with_him(dead: Path) -> None:
    code = "import sys; from guardrun.supervisor.collect.host.file_systems import ask; ask(sys.argv[1:], 600)"
    with subprocess.Popen([sys.executable, "-c", code, str(dead)]) as asks:
        try:
            child = wait_until(lambda: [one for one in descendants(asks.pid) if one.state == "D"], 30, "the child")[0]
        finally:
            asks.kill()
    wait_until(lambda: not is_alive(child.pid), 20, "its end")


@pytest.mark.real("fuse")
def test_an_answer_that_comes_late_is_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        assert list(ask([str(folder)], 0.3).dead) == [str(folder)]
    wait_until(lambda: ask([str(folder)], 60.0).dead == {}, 10, "the mount's end")


@pytest.mark.real("fuse")
def test_a_process_that_waits_there_is_explained(dead: Path) -> None:
    waiting = subprocess.Popen([sys.executable, "-c", f"open({str(dead / 'shard')!r})"])
    try:
        wait_until(lambda: (stat := read_stat(waiting.pid)) is not None and stat.state == "D", 20, "state D")
        look = explain(ProcessLook(pid=waiting.pid, state="D"), [str(dead)], read_mounts())
        assert look.dead_mount == str(dead)
        assert explain(ProcessLook(pid=waiting.pid, state="D"), [], read_mounts()).dead_mount == ""
    finally:
        waiting.kill()
        waiting.wait()


def test_open_files_tell_which_mounts_are_used() -> None:
    with open("/dev/shm/guardrun-test-open", "w") as file:
        os.unlink(file.name)
        used = mounts_used_by([os.getpid()], [Mount("/", "ext4", ""), Mount("/dev/shm", "tmpfs", "")])
    assert "/" in used
    assert mounts_used_by([2**22 + 1], MOUNTS) == []


@pytest.mark.parametrize(
    ("text", "machine", "fd"),
    [
        ("0 0x3 0x7f 0x10 0x0 0x0 0x0 0x7ff 0x7fa", "x86_64", 3),
        ("74 0x1f 0x0 0x0 0x0 0x0 0x0 0x7ff 0x7fa", "x86_64", 31),
        ("63 0x3 0x7f 0x10 0x0 0x0 0x0 0x7ff 0x7fa", "aarch64", 3),
        ("257 0xffffff9c 0x7fd9 0x0 0x0 0x0 0x0 0x7ff 0x7fa", "x86_64", None),
        ("0 0x3 0x7f", "riscv64", None),
        ("running", "x86_64", None),
        ("-1 0x7ff 0x7fa", "x86_64", None),
        ("", "x86_64", None),
    ],
)
def test_the_descriptor_of_a_system_call(text: str, machine: str, fd: int | None) -> None:
    assert parse_syscall(text, machine) == fd


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        ("230 0x1 0x1 0x7ffd 0x0 0x0 0x0 0x7ff 0x7fa", "x86_64", True),
        ("115 0x1 0x1 0x7ffd 0x0 0x0 0x0 0x7ff 0x7fa", "aarch64", True),
        ("23 0x0 0x0 0x0 0x0 0x7ffd 0x0 0x7ff 0x7fa", "x86_64", True),
        ("23 0x5 0x7f 0x0 0x0 0x7ffd 0x0 0x7ff 0x7fa", "x86_64", False),
        ("202 0x7f 0x189 0x0 0x7ffd 0x0 0xffffffff 0x7ff 0x7fa", "x86_64", True),
        ("202 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ff 0x7fa", "x86_64", False),
        ("7 0x7ffd 0x1 0x1388 0x0 0x0 0x0 0x7ff 0x7fa", "x86_64", False),
        ("230 0x1 0x1 0x7ffd 0x0 0x0 0x0 0x7ff 0x7fa", "riscv64", False),
        ("running", "x86_64", False),
        ("", "x86_64", False),
    ],
    ids=[
        "sleep",
        "sleep on ARM",
        "an old sleep",
        "select",
        "a lock with a limit",
        "a lock",
        "poll",
        "?",
        "runs",
        "none",
    ],
)
def test_a_thread_that_sleeps_on_a_timer(text: str, machine: str, expected: bool) -> None:
    assert is_timed(text, machine) is expected
