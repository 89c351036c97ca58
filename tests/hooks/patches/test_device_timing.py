"""Timing on the device: what it sums up, and what it leaves alone. The device is played; tests/emu has a real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.patches import device_timing
from guardrun.hooks.patches.device_timing import LOOK_EVERY, MAX_WAITING, DeviceTimer
from guardrun.hooks.rank.rank import private_words
from guardrun.hooks.wire.board import Field


class Played:
    """A device with a clock of its own. What is recorded is done at once, unless it is held."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.stream = 7
        self.is_initialized = True
        self.is_capturing = False
        self.is_held = False
        self.error: Exception | None = None
        self.made = self.records = self.queries = 0

    @property
    def torch(self) -> Any:
        def current_stream() -> Any:
            return SimpleNamespace(stream_id=self.stream)

        played = SimpleNamespace(
            is_initialized=lambda: self.is_initialized, is_current_stream_capturing=lambda: self.is_capturing
        )
        accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type="played"), current_stream=current_stream
        )
        return SimpleNamespace(played=played, accelerator=accelerator, Event=self._event)

    def _event(self, kind: str, *, enable_timing: bool) -> Event:
        assert (kind, enable_timing) == ("played", True)
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Played) -> None:
        self.device = device
        self.at_ms = 0.0
        self.is_done = False

    def record(self) -> None:
        assert not self.device.is_capturing
        if self.device.error is not None:
            raise self.device.error
        self.device.records += 1
        self.at_ms = self.device.now_ms
        self.is_done = not self.device.is_held

    def query(self) -> bool:
        assert not self.device.is_capturing
        self.device.queries += 1
        self.is_done = self.is_done or not self.device.is_held
        return self.is_done

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query(), "as torch has it: both must be completed"
        return other.at_ms - self.at_ms


class Job:
    """A rank's training thread on it."""

    def __init__(self, device: Played) -> None:
        self.device = device
        self.failed: list[tuple[str, str]] = []
        self.words = private_words()
        self.timer = DeviceTimer(self)  # type: ignore[arg-type]  # as much of a rank as it needs
        self.wait = self.timer.wrap(self._wait)
        self.outer = self.timer.wrap(self.wait)

    def fail(self, hook: str, error: BaseException) -> None:
        self.failed.append((hook, str(error)))

    def _wait(self, ms: float, async_op: bool = False) -> str:
        self.device.now_ms += ms
        return f"{ms}"

    def train(self, steps: int, work_ms: float = 30.0, wait_ms: float = 10.0, waits: int = 1) -> list[int]:
        """What was summed up of so many steps."""
        for _ in range(steps):
            self.device.now_ms += work_ms
            for _ in range(waits):
                assert self.wait(wait_ms / waits) == f"{wait_ms / waits}"
            self.timer.on_step()
        return self.timer.pop_sums()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Played:
    device = Played()
    monkeypatch.setitem(sys.modules, "torch", device.torch)
    return device


@pytest.fixture
def job(device: Played) -> Iterator[Job]:
    job = Job(device)
    job.train(3)
    yield job


def each_ms(sums: list[int]) -> list[float]:
    return [round(part / sums[0] / 1e6, 3) for part in sums[1:]]


def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine takes for it."""
    monkeypatch.setattr(device_timing, "SHARE", 1e6)


def test_steps_and_waits_are_summed_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch)
    job.train(10)
    job.words[Field.DATA_TOTAL_NS] += 5
    sums = job.train(20, waits=4)
    assert sums[0] == 20 and each_ms(sums)[:2] == [40.0, 10.0] and sums[3] == 5
    assert job.timer.has_seen_waits and job.failed == []


def test_what_returns_at_once_what_is_within_and_what_is_in_another_stream_is_not_timed(
    job: Job, device: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_step(monkeypatch)
    job.train(10)
    for _ in range(10):
        device.now_ms += 20
        job.timer.wrap(job._wait)(5, async_op=True)
        job.outer(10)
        device.stream = 8
        job.wait(15)
        device.stream = 7
        job.timer.on_step()
    assert each_ms(job.timer.pop_sums())[:2] == [50.0, 10.0]


def test_nothing_is_waited_for_and_only_so_many_are_asked_for(job: Job, device: Played) -> None:
    job.train(10)
    device.is_held = True
    queries = device.queries
    assert job.train(200)[0] == 0
    assert len(job.timer._waiting) == MAX_WAITING
    assert device.queries - queries <= 200, "one a step"
    device.is_held = False
    assert job.train(1)[0] >= MAX_WAITING
    made = device.made
    job.train(500)
    assert device.made == made, "events are used again"


def test_during_a_capture_nothing_is_recorded_or_asked(job: Job, device: Played) -> None:
    job.train(10)
    device.is_capturing = True
    before = (device.records, device.queries)
    assert job.train(20)[0] == 0
    assert (device.records, device.queries) == before
    device.is_capturing = False
    # A capture that begins within a step: its waits are left alone.
    job.timer.on_step()
    device.is_capturing = True
    job.wait(5)
    device.is_capturing = False
    assert job.failed == [] and job.train(200)[0] > 0


def test_an_odd_step_takes_what_was_not_told_yet_with_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch)
    job.train(20)
    for work_ms in (30.0, 30.0, 4000.0, 30.0):
        job.device.now_ms += work_ms
        job.wait(10)
        job.timer.on_step()
    assert each_ms(job.timer.pop_sums())[:2] == [40.0, 10.0]


def test_it_costs_a_share_of_a_step_at_most(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten microseconds for each event are a hundred of steps of 4 ms, the share of which is eight."""
    clock_ns = [0]

    def tick() -> int:
        clock_ns[0] += 10_000
        return clock_ns[0]

    monkeypatch.setattr(device_timing, "monotonic_ns", tick)
    job.train(200, work_ms=3.0, wait_ms=1.0, waits=4)
    records = job.device.records
    job.train(1000, work_ms=3.0, wait_ms=1.0, waits=4)
    timed = (job.device.records - records) / 10
    assert 20 <= timed <= 120
    assert timed * 60_000 <= 1000 * 4_000_000 * device_timing.SHARE * 1.3


def test_a_step_with_too_many_waits_is_not_timed_and_soon_none_is(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch)
    monkeypatch.setattr(device_timing, "MAX_EVENTS", 100)
    assert job.train(2, waits=100)[0] == 0
    assert job.train(5)[0] > 0, "one of them is no reason"
    job.train(20, waits=100)
    assert job.failed == [("device timing", "a step waits more than 50 times for other ranks")]
    assert job.device.made <= 100
    assert job.timer.is_off and not job.timer.on_step()


def test_whatever_fails_turns_it_off_for_good_and_harms_no_call(job: Job, device: Played) -> None:
    device.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    job.train(50)
    device.error = None
    records = device.records
    job.train(50)
    assert device.records == records
    assert job.failed == [("device timing", "CUDA error: an illegal memory access was encountered")]


def test_what_a_wait_raises_is_the_script_s(job: Job) -> None:
    def fall() -> None:
        raise ValueError("a timeout")

    wait = job.timer.wrap(fall)
    for _ in range(5):
        with pytest.raises(ValueError, match="a timeout"):
            wait()
        job.timer.on_step()
    assert job.failed == [] and job.train(5)[0] > 0


def test_a_child_times_nothing(job: Job, device: Played) -> None:
    job.timer.stop()
    records = device.records
    job.train(20)
    assert device.records == records and job.failed == []


def test_where_no_device_is_in_use_none_is_touched(device: Played) -> None:
    device.is_initialized = False
    job = Job(device)
    assert job.train(3 * LOOK_EVERY)[0] == 0 and not job.timer.on_step()
    assert device.made == 0
    device.is_initialized = True
    assert job.train(3 * LOOK_EVERY)[0] > 0


def test_an_older_torch_is_said_once(monkeypatch: pytest.MonkeyPatch, device: Played) -> None:
    torch = device.torch
    del torch.accelerator
    monkeypatch.setitem(sys.modules, "torch", torch)
    job = Job(device)
    job.train(10)
    assert [hook for hook, _ in job.failed] == ["device timing"] and not job.timer.on_step()
