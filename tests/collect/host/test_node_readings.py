"""Readings of the node: parsers on samples, and all of them on this machine."""

from __future__ import annotations

import os
import time

import pytest

from guardrun.supervisor.collect.host.file_systems import Answers, Mount, Room
from guardrun.supervisor.collect.host.node_readings import (
    of_memory,
    of_mounts,
    parse_cgroup,
    parse_cpu_stat,
    parse_loadavg,
    parse_meminfo,
    parse_pressure,
    read_readings,
)
from guardrun.supervisor.engine.model.looks import Reading


def brief(readings: list[Reading]) -> list[tuple[str, float, bool]]:
    return [(reading.name, reading.value, reading.is_odd) for reading in readings]


def test_load() -> None:
    assert brief(parse_loadavg("4.93 4.10 3.02 5/305 12345\n", 2)) == [("load", 4.93, True)]
    assert brief(parse_loadavg("3.9 4.10 3.02 5/305 12345\n", 2)) == [("load", 3.9, False)]
    assert parse_loadavg("", 2) == parse_loadavg("x", 2) == []


def test_memory() -> None:
    text = (
        "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"
    )
    assert brief(parse_meminfo(text)) == [("memory available", 0.5, True), ("swap used", 1.0, False)]
    assert parse_meminfo("MemTotal: 16777216 kB\nSwapTotal: 0 kB\nnonsense\n") == []


def test_pressure() -> None:
    text = "some avg10=90.73 avg60=4.55 avg300=5.42 total=1\nfull avg10=21.00 avg60=0.00 avg300=0.00 total=0\n"
    assert brief(parse_pressure("cpu", text)) == [("cpu pressure", 90.73, True)]
    assert brief(parse_pressure("io", text)) == [("io pressure", 21.0, True)]
    assert parse_pressure("io", "some avg10=1.0\n") == parse_pressure("io", "full avg10=x\n") == []


def test_cgroups() -> None:
    assert parse_cgroup("5:cpu,cpuacct:/job\n0::/user/x\n") == {"cpu": "/job", "cpuacct": "/job", "": "/user/x"}
    assert brief(parse_cpu_stat("nr_periods 200\nnr_throttled 50\nthrottled_time 9\n")) == [
        ("CPU quota used up", 25.0, True)
    ]
    assert parse_cpu_stat("usage_usec 5\nnr_periods 0\nnr_throttled 0\n") == []
    assert brief(of_memory("1073741824\n", "2147483648\n")) == [("memory left to the cgroup", 1.0, False)]
    assert of_memory("5\n", "max\n") == of_memory("5\n", "9223372036854771712\n") == of_memory("", "") == []


def test_rooms_once_a_mount_and_the_dead_first() -> None:
    rooms = [Room("/a", "/", 5 << 20, 100 << 30), Room("/b", "/", 5 << 20, 100 << 30), Room("/proc", "/proc", 0, 0)]
    readings = of_mounts(Answers(rooms, {"/scratch": 2.0}), [Mount("/scratch", "nfs4", ""), Mount("/", "ext4", "")])
    assert brief(readings) == [("/scratch", 2.0, True), ("/ free", 0.0, True)]
    assert readings[0].note == "has not answered (nfs4)"


def test_all_of_this_machine() -> None:
    began = time.monotonic()
    readings, answers = read_readings(["/tmp", "/dev/shm"], [os.getpid()], timeout_s=60.0)
    assert time.monotonic() - began < 30
    names = {reading.name for reading in readings}
    assert {"load", "memory available", "processes in uninterruptible wait", "/dev/shm free"} <= names
    assert answers.dead == {}
    odd = [reading.is_odd for reading in readings]
    assert odd == sorted(odd, reverse=True), "what is odd comes first"


@pytest.mark.parametrize("pid", [2**22 + 1, 0])
def test_a_process_that_is_gone(pid: int) -> None:
    assert read_readings([], [pid])[0]
