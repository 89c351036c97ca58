"""The host's judges: what lasts is found, a blip is not; resets, jumps, nonsense and silence find nothing."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from guardrun.supervisor.health.base.findings import Response
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.health.host.cpus import CpuStarvedJudge, ThermalCpuJudge
from guardrun.supervisor.health.host.machine import ClockJudge, MachineJudge, UnresponsiveSensorJudge
from guardrun.supervisor.health.host.memory import MemoryJudge
from guardrun.supervisor.health.judges import all_judges, host_judges
from tests.sensors.story import Story

GIB = 1 << 30


class Cpu:
    """/proc/stat of two CPUs, ten seconds at a time."""

    def __init__(self) -> None:
        self.story = Story(CpuStarvedJudge(), "cpu")
        self.busy_s, self.steal_s = 500.0, 10.0

    def run(self, turns: int, busy: float, steal: float) -> None:
        for _ in range(turns):
            self.story.wait(10)
            self.busy_s += busy * 20
            self.steal_s += steal * 20
            self.story.turn("cpu", busy_s=self.busy_s, steal_s=self.steal_s, idle_s=9000.0)


def test_stolen_time_is_found_when_it_lasts_and_is_over_when_it_ends() -> None:
    cpu = Cpu()
    cpu.run(6, busy=0.9, steal=0.0)
    cpu.run(2, busy=0.5, steal=0.4)
    cpu.run(6, busy=0.9, steal=0.0)
    assert cpu.story.told == [], "a blip"
    cpu.run(8, busy=0.5, steal=0.4)
    (finding,) = cpu.story.told
    assert finding.id == "cpu_starved/cpu/steal" and finding.cause == "cpu_starved"
    assert finding.summary == "44% of the CPUs' time goes to other virtual machines."
    assert finding.response is Response.NOTE and finding.told_s - finding.since_s >= 45
    cpu.run(8, busy=0.9, steal=0.0)
    assert [f.is_over for f in cpu.story.told] == [False, True]
    assert cpu.story.holding() == []


def test_an_idle_machine_loses_nothing_by_what_is_stolen() -> None:
    cpu = Cpu()
    cpu.run(12, busy=0.01, steal=0.02)
    assert cpu.story.told == []


def run_quota(story: Story, turns: int, share: float, at: dict[str, float]) -> None:
    for _ in range(turns):
        story.wait(10)
        at["periods"] += 100
        at["throttled_periods"] += 100 * share
        at["throttled_s"] += 5 * share
        story.turn("cgroup:/job", **at)


def test_a_quota_that_is_used_up() -> None:
    story, at = Story(CpuStarvedJudge(), "cgroup"), {"periods": 7.0, "throttled_periods": 7.0, "throttled_s": 1.0}
    run_quota(story, 5, 0.1, at)
    run_quota(story, 8, 0.6, at)
    (finding,) = story.told
    assert finding.id == "cpu_starved/cgroup:/job/quota"
    assert finding.summary == "The CPU quota of control group /job is used up in 60% of its periods."
    story.wait(10).turn("cgroup:/other", periods=1, throttled_periods=0)
    assert story.told[-1].is_over and "gone" in story.told[-1].summary


def test_counters_that_go_backwards_or_say_nonsense_find_nothing() -> None:
    for values in (
        {"periods": -5.0, "throttled_periods": 1.0},
        {"periods": math.nan, "throttled_periods": math.nan},
        {"periods": 10.0, "throttled_periods": 1e18},
        {"periods": "many", "throttled_periods": True},
    ):
        story = Story(CpuStarvedJudge(), "cgroup")
        for number in range(20):
            story.wait(10).turn("cgroup:/job", **values)
            story.wait(10).turn("cgroup:/job", periods=1000 - number, throttled_periods=900 - number)
        assert story.told == []


def test_readouts_from_the_past_and_long_gaps_prove_nothing() -> None:
    story, total_s = Story(CpuStarvedJudge(), "pressure"), 0.0
    for number in range(40):
        total_s += 10
        story.wait(-30 if number % 2 else 40).turn("cpu", stalled_some_s=total_s)
    before = len(story.told)
    story = Story(CpuStarvedJudge(), "pressure")
    for _ in range(3):
        story.turn("cpu", stalled_some_s=total_s)
        story.wait(10).turn("cpu", stalled_some_s=total_s + 9.5)
        story.wait(400)
        total_s += 9.5
    assert (before, story.told) == (0, [])


def test_pressure_that_lasts() -> None:
    story, total_s = Story(CpuStarvedJudge(), "pressure"), 3.0
    for _ in range(10):
        total_s += 9.0
        story.wait(10).turn("cpu", stalled_some_s=total_s)
        story.turn("io", stalled_some_s=total_s)
    (finding,) = story.told
    assert finding.summary == "Some task waits for a CPU 90% of the time."


@pytest.mark.parametrize(
    ("per_turn", "is_found"),
    [
        ({"throttle_count": 3}, True),
        ({"throttle_count": 0}, False),
        ({"throttle_count": 3, "throttled_s": 2.0}, True),
        ({"throttle_count": 3, "throttled_s": 0.01}, False),
        ({"core_throttle_count": 1}, True),
        ({"throttle_count": 3, "throttled_s": 1e6}, True),  # More seconds than there are: the count is left.
        ({"throttle_count": -1}, False),
    ],
)
def test_a_cpu_that_is_too_hot(per_turn: dict[str, float], is_found: bool) -> None:
    story = Story(ThermalCpuJudge(), "cpu")
    values = dict.fromkeys(per_turn, 100.0)
    for _ in range(8):
        values = {name: values[name] + more for name, more in per_turn.items()}
        story.wait(10).turn("cpu:0", **values, frequency_hz=1_200_000_000, frequency_max_hz=3_600_000_000)
    assert [finding.id for finding in story.told] == (["thermal/cpu:0"] if is_found else [])
    if is_found:
        assert story.told[0].summary == "CPU 0 is too hot and slows down: 1200 of 3600 MHz."
        for _ in range(14):
            story.wait(10).turn("cpu:0", **values)
        assert story.told[-1].is_over


def test_a_throttling_blip_is_no_verdict() -> None:
    story, count = Story(ThermalCpuJudge(), "cpu"), 5
    for number in range(30):
        count += number % 5 == 0
        story.wait(10).turn("cpu:0", throttle_count=count)
    assert story.told == []


def test_memory_that_is_nearly_gone() -> None:
    story = Story(MemoryJudge(), "memory")
    for free in (30, 0.5, 30, 0.5, 0.4, 0.3, 0.2):
        story.wait(10).turn("memory", available_bytes=int(free * GIB), total_bytes=64 * GIB, oom_kills=0)
    (finding,) = story.told
    assert finding.id == "memory/memory/low" and finding.summary == "0.2 of 64 GiB of memory are left."
    for _ in range(8):
        story.wait(10).turn("memory", available_bytes=30 * GIB, total_bytes=64 * GIB, oom_kills=0)
    assert story.holding() == []


def test_a_node_that_only_swaps() -> None:
    story, total_s = Story(MemoryJudge(), "pressure"), 5.0
    for share in (0.9, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5):
        total_s += 10 * share
        story.wait(10).turn("memory", stalled_full_s=total_s)
        story.turn("io", stalled_full_s=total_s * 2)
    assert [f.summary for f in story.told] == ["All tasks wait for memory 50% of the time."]


def test_an_oom_kill_is_named_by_the_log_and_counted_once() -> None:
    story = Story(MemoryJudge(), "memory")
    story.turn("memory", oom_kills=33)
    story.sensor = "kernel_log"
    story.wait(5).line("oom_kill", "memory", pid=4242, task="python", cgroup="/job")
    story.sensor = "memory"
    story.wait(5).turn("memory", oom_kills=34)
    (finding,) = story.told
    assert finding.summary == (
        "The kernel has killed a process for want of memory, last python (process 4242) in control group /job."
    )
    story.wait(10).turn("memory", oom_kills=36)
    assert story.told[-1].evidence["kills"] == 3
    story.wait(700).turn("memory", oom_kills=36)
    assert story.holding() == [] and story.told[-1].is_over


def test_machine_checks_are_found_at_once_and_corrected_ones_when_there_are_many() -> None:
    story = Story(MachineJudge(), "kernel_log")
    story.line("mce", "cpu", "Bank 5: be00000000800400", is_corrected=False, bank=5)
    (finding,) = story.told
    assert finding.id == "machine/cpu/machine_check" and finding.key == "machine_check"
    for _ in range(19):
        story.wait(60).line("mce", "memory", "EDAC MC0: 1 CE", is_corrected=True)
    assert len(story.told) == 1
    story.line("mce", "memory", "EDAC MC0: 1 CE", is_corrected=True)
    assert story.told[-1].id == "machine/memory/corrected"
    story.wait(4000).line("unheard_of", "cpu")
    assert story.holding() == []


@pytest.mark.parametrize("name", ["lockup", "rcu_stall", "hung_task", "oops", "memory_failure", "pcie_error"])
def test_what_the_log_says_of_the_machine(name: str) -> None:
    story = Story(MachineJudge(), "kernel_log")
    (finding,) = story.line(name, "cpu", "what the kernel said\x1b[31m")
    assert finding.cause == "machine" and "\x1b" not in finding.summary
    assert story.line(name, "cpu", "again") == [], "a second one is no news"
    for _ in range(8):
        story.line(name, "cpu", "again")
    assert story.told[-1].evidence["times"] == 10


def test_a_process_that_waits_for_ever() -> None:
    story = Story(MachineJudge(), "processes")
    story.turn("processes", waiting=3, longest_wait_s=20.0, longest_wait_pid=7, longest_wait_name="dd")
    story.wait(120).turn("processes", waiting=1, longest_wait_s=140.0, longest_wait_pid=7, longest_wait_name="dd")
    assert story.told == []
    story.wait(30).turn(
        "processes",
        waiting=1,
        longest_wait_s=170.0,
        longest_wait_pid=7,
        longest_wait_name="dd",
        longest_wait_place="rpc_wait_bit_killable",
    )
    assert story.told[0].summary == (
        "Process 7 (dd) has been in uninterruptible wait for 170 s in rpc_wait_bit_killable."
    )
    story.wait(30).turn("processes", waiting=0)
    assert story.holding() == []


def test_limits_that_are_nearly_reached() -> None:
    story = Story(MachineJudge(), "processes")
    for _ in range(3):
        story.wait(30).turn(
            "processes", waiting=0, threads=32_000, threads_limit=32_768, open_files=1, open_files_limit=9
        )
    assert [f.summary for f in story.told] == ["32000 of 32768 threads are in use."]
    story.sensor = "cgroup"
    for _ in range(4):
        story.wait(10).turn("cgroup:/job", threads=99, threads_limit=100)
    assert story.told[-1].summary == "99 of 100 threads are in use in cgroup:/job."


def test_a_clock_that_was_set_is_off_or_not_kept() -> None:
    story = Story(ClockJudge(), "clock")
    story.line("clock_step", "clock", step_s=-3600.0)
    assert story.told[0].summary == "The wall clock was set by -3600.0 s."
    for _ in range(70):
        story.wait(10).turn("clock", is_synchronized=False, offset_s=0.0)
    assert story.holding() == [], "a step is told for a while; one that nobody ever kept is how it is"
    story.wait(10).turn("clock", is_synchronized=True, offset_s=0.0)
    for _ in range(100):
        story.wait(10).turn("clock", is_synchronized=False, offset_s=-2.0)
    assert story.holding() == ["clock/clock/offset", "clock/clock/unkept"]
    assert next(f for f in story.told if f.id.endswith("offset")).summary == "The wall clock is 2.0 s off."


def test_a_silent_sensor() -> None:
    story = Story(UnresponsiveSensorJudge(), "disks")
    silent = Readout(sensor="disks", at_s=1000.0, trouble="its call has not returned within 10 s", is_silent=True)
    (finding,) = story.give(silent)
    assert finding.id == "sensor/sensor:disks" and finding.response is Response.NOTE
    assert story.give(silent) == []
    (over,) = story.wait(60).turn("disk:a", completed=1)
    assert over.is_over and over.summary == "Sensor disks answers again"
    gpu = Readout(sensor="gpu", at_s=1000.0, is_silent=True)
    assert story.give(gpu) == [], "NVML's is another judge's"


NONSENSE: list[Any] = [None, math.nan, math.inf, -1, -1e300, 1e300, 2**70, "", "x" * 10_000, True, "\x00\n"]


def test_no_judge_raises_or_finds_anything_whatever_a_readout_holds() -> None:
    names = {
        "cpu": ("cpu:0", "cpu"),
        "cgroup": ("cgroup:/x",),
        "disks": ("disk:sda", "mount:/"),
        "mounts": ("mount:/",),
        "network": ("net:eth0",),
        "infiniband": ("ib:mlx5_0/1",),
        "memory": ("memory",),
        "processes": ("processes",),
        "clock": ("clock",),
        "pressure": ("cpu",),
    }
    quantities = re.findall(
        r"\w+",
        "busy_s steal_s throttled_s throttle_count core_throttle_count periods throttled_periods stalled_some_s "
        "available_bytes total_bytes oom_kills waiting threads threads_limit completed in_flight "
        "io_errors asked_s rx_packets rx_errors tx_errors carrier_changes link_downed symbol_error",
    )
    judges = host_judges()
    told = []
    for number, value in enumerate(NONSENSE * 3):
        for sensor, subjects in names.items():
            samples = [Sample(subject=s, name=name, value=value) for s in subjects for name in quantities]
            readout = Readout(sensor=sensor, at_s=1000.0 + number * 10, samples=samples)
            for judge in judges:
                if not judge.sensors or sensor in judge.sensors:
                    told += judge.judge_readout(readout, 1000.0 + number * 10)
    assert [f.summary for f in told] == []


def test_judges_are_all_there_and_name_their_sensors() -> None:
    judges = all_judges()
    assert len({type(judge) for judge in judges}) == len(judges) > 10
    assert sum(not judge.sensors for judge in judges) == 1
