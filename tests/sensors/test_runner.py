"""The runner: turns without drift, descriptors that are waited on, sensors that hang, raise or answer nonsense."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.readouts import Mailbox
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.base.sensor_runner import MAX_SAMPLES, Runner, Worker
from tests.sensors.plain_sensor import Plain
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Waiting(Plain):
    """Waits on a pipe, and reads one byte of it a turn."""

    def __init__(self, name: str, reader: int) -> None:
        super().__init__(name, self._take)
        self.reader = reader

    def _take(self, now_s: float) -> Readout:
        try:
            text = os.read(self.reader, 1).decode()
        except BlockingIOError:
            text = ""
        return Readout(sensor=self.name, at_s=now_s, samples=[Sample(subject="pipe", name="text", value=text)])

    def fileno(self) -> int:
        return self.reader


class Stage:
    """A runner and what came out of it."""

    def __init__(self) -> None:
        self.readouts: list[Readout] = []
        self.runner: Runner | None = None

    def start(self, *sensors: Sensor) -> Runner:
        self.runner = Runner(sensors, self.readouts.append)
        self.runner.start()
        return self.runner

    def of(self, name: str) -> list[Readout]:
        return [readout for readout in self.readouts if readout.sensor == name]

    def wait(self, name: str, count: int = 1) -> list[Readout]:
        return wait_until(lambda: self.of(name)[count - 1 :] and self.of(name), 10, f"{count} of {name}")


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    if stage.runner is not None:
        stage.runner.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open at the end, so that whoever hangs there ends with its test."""
    event = threading.Event()
    yield event
    event.set()


def test_every_sensor_has_a_turn_at_once_and_then_at_its_period(stage: Stage) -> None:
    stage.start(Plain("fast", period_s=0.1), Plain("slow", period_s=60))
    turns = stage.wait("fast", 6)
    assert len(stage.of("slow")) == 1
    assert all(turn.took_s >= 0 and not turn.is_silent for turn in turns)


def test_a_sensor_that_hangs_is_silent_once_delays_nobody_and_comes_back(
    stage: Stage, gate: threading.Event, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = Plain("stuck", lambda _: fifo.open("rb").close(), period_s=0.05, timeout_s=0.2)
    stuck.doing = "opening the fifo"  # type: ignore[attr-defined]
    runner = stage.start(stuck, Plain("other", period_s=0.05))
    (silent,) = stage.wait("stuck")
    assert silent.is_silent and silent.trouble == "its call has not returned within 0.2 s (opening the fifo)"
    assert silent.took_s >= 0.2
    assert [turn.is_silent for turn in runner.turns()] == [True, False]
    seen = len(stage.of("other"))
    stage.wait("other", seen + 5)
    assert len(stage.of("stuck")) == 1, "told once, and not called again"
    with fifo.open("wb"):
        back = stage.wait("stuck", 2)[1]
    assert not back.is_silent and back.took_s > 0.2 and not back.trouble
    stage.wait("stuck", 3)  # Its next call hangs again: open for its end.
    opener = os.open(fifo, os.O_RDWR)
    try:
        wait_until(lambda: not runner.turns()[0].is_silent, 10, "the sensor to be back")
        runner.close()
    finally:
        os.close(opener)


def test_closing_waits_for_no_stuck_sensor_which_is_closed_when_it_returns(stage: Stage, gate: threading.Event) -> None:
    stuck = Plain("stuck", lambda _: gate.wait() and None, timeout_s=0.1)
    other = Plain("other")
    runner = stage.start(stuck, other)
    stage.wait("stuck")
    began = time.monotonic()
    runner.close()
    assert time.monotonic() - began < 30
    assert other.is_closed and not stuck.is_closed
    gate.set()
    wait_until(lambda: stuck.is_closed, 5, "the stuck sensor's end")
    assert len(stage.of("stuck")) == 1, "nothing is told after close()"


def test_a_sensor_that_raises_or_answers_nonsense_is_trouble_and_goes_on(stage: Stage) -> None:
    def fail(now_s: float) -> object:
        raise OSError(5, "Input/output error")

    stage.start(
        Plain("bad", fail, period_s=0.05),
        Plain("odd", lambda _: 42),
        Plain("big", lambda now: Readout(sensor="x", at_s=0, samples=[Sample(subject="a", name="b")] * 9999)),
    )
    assert stage.wait("bad", 2)[0].trouble == "it failed: OSError: [Errno 5] Input/output error"
    assert stage.wait("odd")[0].trouble == "it answered a int"
    (big,) = stage.wait("big")
    assert len(big.samples) == MAX_SAMPLES and "left out" in big.trouble and big.at_s > 0


def test_a_descriptor_is_waited_on(stage: Stage) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    try:
        stage.start(Waiting("pipe", reader))
        stage.wait("pipe")
        began = time.monotonic()
        os.write(writer, b"abc")
        turns = stage.wait("pipe", 4)
        assert [turn.samples[0].value for turn in turns] == ["", "a", "b", "c"]
        assert turns[1].at_s - began < 30
        assert turns[3].at_s - began > 0.3, "one that is always ready does not keep the runner busy"
        os.close(writer)
        writer = -1
        count = len(stage.wait("pipe", 5))
        assert count < 12
    finally:
        assert stage.runner is not None
        stage.runner.close()
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def test_a_descriptor_that_cannot_be_waited_on_leaves_the_period(stage: Stage, tmp_path: Path) -> None:
    file = os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT)
    try:
        sensor = Waiting("file", file)
        sensor.period_s = 0.1
        stage.start(sensor, Plain("other"))
        assert len(stage.wait("file", 3)) < 20
    finally:
        assert stage.runner is not None
        stage.runner.close()
        os.close(file)


def test_what_deliver_raises_ends_nothing(stage: Stage) -> None:
    def deliver(readout: Readout) -> None:
        raise ValueError

    runner = Runner([Plain("a", period_s=0.02)], deliver)
    runner.start()
    wait_until(lambda: runner.undelivered >= 3, 10, "three turns")
    runner.close()
    runner.close()


def test_a_runner_that_never_started_can_be_closed() -> None:
    Runner([Plain("a")], lambda _: None).close()


def test_a_dear_sensor_gets_a_longer_period() -> None:
    worker = Worker(Plain("dear", period_s=1), lambda *_: None)
    assert worker.period_s == 1
    worker.cost_s = 0.05
    assert worker.period_s == pytest.approx(50)
    worker.due_s = 10
    worker.skip_to_after(12)
    assert worker.due_s == pytest.approx(60)
    worker.cost_s = 3.0
    assert worker.period_s == 120
    worker.cost_s = 0
    worker.due_s = 10
    worker.skip_to_after(12.5)
    assert worker.due_s == pytest.approx(13)


STOPPED = """
import sys, time
from tests.sensors.plain_sensor import Plain
from guardrun.supervisor.sensors.base.sensor_runner import Runner
slow = Plain("slow", lambda _: time.sleep(1.5), timeout_s=4.0)
runner = Runner([slow], lambda readout: print(readout.is_silent, flush=True))
runner.start()
print("ready", flush=True)
sys.stdin.read()
runner.close()
"""


def test_time_in_which_we_did_not_run_is_nobodys_silence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4.6)  # The stop itself: longer than the call may take.
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "False\n"
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_the_mailbox_wakes_its_loop_and_is_bounded() -> None:
    box = Mailbox(limit=3)
    readouts = [Readout(sensor="a", at_s=float(number)) for number in range(5)]
    assert box.pop_all() == []
    for readout in readouts:
        box.put(readout)
    assert box.pop_all() == readouts[2:] and box.dropped == 2
    with pytest.raises(BlockingIOError):
        os.read(box.fileno(), 1)
    box.put(readouts[0])
    assert box.pop_all() == readouts[:1]
    box.close()
    box.close()
    box.put(readouts[0])
    assert box.pop_all() == [] and box.fileno() == -1


CROWDED = """
import os, sys, time
from tests.sensors.plain_sensor import Plain
from guardrun.supervisor.sensors.base.sensor_runner import Runner
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
told = lambda r: print(r.sensor, r.trouble.partition(":")[0], flush=True)
runner = Runner([Plain(name, period_s=0.2) for name in "abc"], told)
open(sys.argv[1] + "/pids.max", "w").write("3")
runner.start()
sys.stdin.read()
runner.close()
"""


@pytest.mark.real("root")
def test_without_threads_for_all_some_are_trouble_until_there_are(tmp_path: Path) -> None:
    roots = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
    root = next((root for root in roots if (root / "cgroup.procs").exists()), roots[0])
    group = root / f"guardrun-pids-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"real part pids: {error}")
    if not (group / "pids.max").exists():
        group.rmdir()
        pytest.skip("real part pids: no such controller")
    process = subprocess.Popen(
        [sys.executable, "-c", CROWDED, str(group)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        while process.stdout.readline() != "c no thread for it\n":
            assert process.poll() is None
        (group / "pids.max").write_text("max")
        while process.stdout.readline() != "c \n":
            assert process.poll() is None
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 5, "the group to be empty")
        group.rmdir()
