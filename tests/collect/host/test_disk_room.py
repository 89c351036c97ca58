from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.node_readings import read_room
from tests.support.deadmount import dead_mount


def test_free_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    free, readings = read_room([str(tmp_path), "/proc"], timeout_s=60.0)
    assert abs(free[str(tmp_path)] - room.f_bavail * room.f_frsize) < 1 << 30
    assert "/proc" in free
    assert "load" in {reading.name for reading in readings}


def test_a_folder_to_come_is_judged_by_its_parent(tmp_path: Path) -> None:
    later = str(tmp_path / "not" / "yet")
    assert read_room([later], timeout_s=60.0)[0][later] > 0


@pytest.mark.real("fuse")
def test_a_dead_mount_holds_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with dead_mount(folder):
        for timeout_s in (1.0, 5.0, 30.0):  # on a busy machine those who ask need longer to begin
            began = time.monotonic()
            free, readings = read_room([str(folder), str(tmp_path)], timeout_s=timeout_s)
            assert time.monotonic() - began < timeout_s + 30
            if free:
                break
        assert list(free) == [str(tmp_path)]
        assert [reading.name for reading in readings if "answered" in reading.note] == [str(folder)]
