from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from guardrun.supervisor.collect import disk
from guardrun.supervisor.collect.disk import read_disk_free


def test_free_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    free = read_disk_free([str(tmp_path), "/proc"])
    assert abs(free[str(tmp_path)] - room.f_bavail * room.f_frsize) < 1 << 30
    assert "/proc" in free


def test_a_folder_to_come_is_judged_by_its_parent(tmp_path: Path) -> None:
    later = str(tmp_path / "not" / "yet")
    assert read_disk_free([later])[later] > 0


def test_a_dead_mount_holds_one_thread_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No dead mount can be made without root and a network file system; what hangs is statvfs, so that is made to.
    release = threading.Event()
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == "/dev":
            release.wait()
        return real(path)

    monkeypatch.setattr(disk.os, "statvfs", statvfs)
    assert list(read_disk_free(["/dev", str(tmp_path)], timeout_s=0.2)) == [str(tmp_path)]
    assert list(read_disk_free(["/dev", str(tmp_path)], timeout_s=0.2)) == [str(tmp_path)]
    assert [thread.name for thread in threading.enumerate()].count("disk") == 1
    release.set()
