"""CPUs: thermal throttling, frequency, and the time that a hypervisor gave to others."""

from __future__ import annotations

import os
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import (
    below,
    known,
    list_folder,
    parse_count,
    read_count,
    read_text,
    unknown,
)

_CPUS = "/sys/devices/system/cpu"
_TICKS = os.sysconf("SC_CLK_TCK")
_TOPOLOGY_READS = 60
"""CPUs are looked for again after so many turns: they can be plugged in and out."""
_CLOCKED = 8
"""CPUs a package whose frequency is read: asking each of hundreds interrupts each."""


class Core(NamedTuple):
    """One core, by the first of its hardware threads."""

    package: int
    folder: str


class CpuSensor:
    """`cpu`: seconds since boot; `cpu:PACKAGE`: throttling and frequency."""

    name = "cpu"
    period_s = 10.0
    timeout_s = 5.0

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._cores: list[Core] = []
        self._reads = 0

    def read(self, now_s: float) -> Readout:
        """From /proc/stat and the cores' files in /sys; which cores there are is read every _TOPOLOGY_READS-th time."""
        if self._reads % _TOPOLOGY_READS == 0:
            self._cores = read_cores(below(self._root, _CPUS))
        self._reads += 1
        text, trouble = read_text(below(self._root, "/proc/stat"))
        samples = parse_stat(text)
        if not samples:
            samples = unknown("cpu", ("busy_s", "idle_s", "steal_s"), trouble or "/proc/stat has no line for all CPUs")
        for package in sorted({core.package for core in self._cores}):
            cores = [core for core in self._cores if core.package == package]
            samples += read_throttling(package, cores) + read_frequency(package, cores)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, trouble=trouble)

    def close(self) -> None:
        """Nothing is held."""


def parse_stat(text: str) -> list[Sample]:
    """The `cpu` line of /proc/stat (proc(5)): guest time is in user time already."""
    count = sum(1 for line in text.splitlines() if line[:3] == "cpu" and line[3:4].isdigit())
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] != "cpu":
            continue
        ticks = [number for word in words[1:9] if (number := parse_count(word)) is not None]
        if len(ticks) < 8:
            return []
        user, nice, system, idle, iowait, irq, softirq, steal = (number / _TICKS for number in ticks)
        return known(
            "cpu",
            cpus=count,
            busy_s=round(user + nice + system + irq + softirq, 2),
            idle_s=round(idle + iowait, 2),
            steal_s=round(steal, 2),
        )
    return []


def read_cores(folder: str) -> list[Core]:
    """The cores that are online; hardware threads of one core share its counters."""
    cores: dict[tuple[int, int], Core] = {}
    numbers = (int(name[3:]) for name in list_folder(folder) if name.startswith("cpu") and name[3:].isdigit())
    for number in sorted(numbers):
        path = f"{folder}/cpu{number}"
        core_id = read_count(f"{path}/topology/core_id")
        if core_id is None:
            continue  # Offline.
        package = max(0, read_count(f"{path}/topology/physical_package_id") or 0)
        cores.setdefault((package, core_id), Core(package, path))
    return list(cores.values())


def read_throttling(package: int, cores: list[Core]) -> list[Sample]:
    """Thermal throttling since boot (kernel: drivers/thermal/intel/therm_throt.c); Intel's CPUs alone tell it.

    Counters of the package are the same at each of its CPUs; those of cores are added up.
    """
    subject = f"cpu:{package}"
    first = f"{cores[0].folder}/thermal_throttle"
    count = read_count(f"{first}/package_throttle_count")
    core_counts = [read_count(f"{core.folder}/thermal_throttle/core_throttle_count") for core in cores]
    if count is None and not any(number is not None for number in core_counts):
        trouble = f"{first} is not there: a virtual machine, or no Intel CPU"
        return unknown(subject, ("throttle_count", "core_throttle_count", "throttled_s"), trouble)
    samples = known(subject, core_throttle_count=sum(number or 0 for number in core_counts))
    if count is not None:
        samples += known(subject, throttle_count=count)
    spent_ms = read_count(f"{first}/package_throttle_total_time_ms")
    if spent_ms is not None:
        samples += known(subject, throttled_s=spent_ms / 1000)
    return samples


def read_frequency(package: int, cores: list[Core]) -> list[Sample]:
    """Frequencies of some of a package's cores against what they can (cpufreq in kHz)."""
    subject = f"cpu:{package}"
    some = cores[:: max(1, len(cores) // _CLOCKED)][:_CLOCKED]
    folders = [f"{core.folder}/cpufreq" for core in some]
    current = [khz for folder in folders if (khz := read_count(f"{folder}/scaling_cur_freq"))]
    highest = read_count(f"{folders[0]}/cpuinfo_max_freq")
    if not current or not highest:
        return unknown(subject, ("frequency_hz", "frequency_max_hz"), f"{folders[0]} is not there, or says nothing")
    return known(subject, frequency_hz=sum(current) // len(current) * 1000, frequency_max_hz=highest * 1000)
