"""An order to start is held until the memory of those before is free: NVML's real process, a stub's answers."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.engine.model.events import Device
from guardrun.supervisor.node import start_gate
from guardrun.supervisor.node.start_gate import FIRST_S, StartGate, find_owner
from guardrun.supervisor.wire.control_messages import Ack, Finish, Start, Stop
from tests.sensors.nvml_stub import NvmlStub, build_library
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("cc")

GPU = Device(subject="gpu:GPU-00000000-0000-0000-0000-000000000000", index=0)
BYTES = 60 << 30
NEVER_MS = 1 << 40
ORDER = Start(attempt=1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's process is started anew in each test, on a machine that may be busy."""
    monkeypatch.setattr(start_gate, "FIRST_S", 60.0)


@pytest.fixture
def stub(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    stub = NvmlStub(library, tmp_path / "readings")
    for name, value in stub.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "held").mkdir()
    stub.set(gpu=0, process_folder=str(tmp_path / "held"), memory_used=0)
    return stub


@pytest.fixture
def dead(tmp_path: Path, stub: NvmlStub) -> int:
    """A rank that has ended, whose memory the driver still has."""
    process = subprocess.Popen(["true"])
    process.wait()
    (tmp_path / "held" / str(process.pid)).write_text(str(BYTES))
    return process.pid


class Bed:
    """In place of the node's loop."""

    def __init__(self, limit_s: float) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.sent: list[Start] = []
        self.gate = StartGate("node-a", self._calls.put, self.sent.append, limit_s)

    def turn(self) -> bool:
        """Make the calls that were posted; whether an order has been sent."""
        while not self._calls.empty():
            self._calls.get()()
        return bool(self.sent)


@pytest.fixture
def make() -> Iterator[Callable[[float], Bed]]:
    beds: list[Bed] = []

    def make(limit_s: float) -> Bed:
        beds.append(Bed(limit_s))
        return beds[-1]

    yield make
    for bed in beds:
        bed.gate.cancel()
    wait_until(lambda: not asking(), 10, "the threads to end")


def asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "guardrun-gpu-memory"]


Make = Callable[[float], Bed]


def test_memory_that_is_freed_late_is_waited_for(make: Make, stub: NvmlStub, dead: int) -> None:
    stub.set(gpu=0, frees_ms=NEVER_MS)
    bed = make(60.0)
    bed.gate.attempt_stopped({dead: 0}, [GPU])
    assert bed.gate.holds(ORDER)
    wait_until(lambda: list(Path(stub_folder(stub)).glob("*.ended")), 20, "NVML to be asked")
    assert not bed.turn()
    stub.set(gpu=0, frees_ms=0)
    wait_until(bed.turn, 20, "the order")
    assert bed.sent == [ORDER] and not bed.gate.holds(ORDER)
    [outcome] = bed.gate.take_outcome()
    assert (outcome.node, outcome.why, outcome.holders) == ("node-a", "free", [])
    assert outcome.waited_s > 0
    assert bed.gate.take_outcome() == [], "it is told once"


def stub_folder(stub: NvmlStub) -> str:
    return str(stub._values["0.process_folder"])


def test_after_the_limit_it_goes_on_and_names_whose_it_is(make: Make, stub: NvmlStub, dead: int) -> None:
    stub.set(gpu=0, frees_ms=NEVER_MS)
    bed = make(0.3)
    bed.gate.attempt_stopped({dead: 3}, [GPU])
    assert bed.gate.holds(ORDER)
    wait_until(bed.turn, 20, "the order")
    [outcome] = bed.gate.take_outcome()
    [holder] = outcome.holders
    assert outcome.why == "limit" and outcome.asked_s >= 0.3
    assert (holder.pid, holder.rank, holder.used_bytes, holder.index) == (dead, 3, BYTES, 0)


def test_what_is_free_already_delays_nothing(make: Make, stub: NvmlStub) -> None:
    bed = make(60.0)
    bed.gate.attempt_stopped({1: 0}, [GPU])
    wait_until(lambda: not bed.gate.holds(ORDER), 20, "an answer, while nothing is ordered yet")
    assert bed.gate.take_outcome() == [] or bed.sent == []


def test_without_devices_or_a_limit_nobody_is_asked(make: Make, stub: NvmlStub, dead: int) -> None:
    for limit_s, devices in ((60.0, []), (0.0, [GPU])):
        bed = make(limit_s)
        bed.gate.attempt_stopped({dead: 0}, devices)
        assert not bed.gate.holds(ORDER)
    assert not asking()


def test_a_driver_that_does_not_answer_holds_nothing_up(
    make: Make, stub: NvmlStub, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_gate, "FIRST_S", FIRST_S)
    stub.hang("nvmlInitWithFlags")
    bed = make(600.0)
    bed.gate.attempt_stopped({dead: 0}, [GPU])
    assert bed.gate.holds(ORDER)
    wait_until(bed.turn, 2 * FIRST_S + 20, "the order")
    [outcome] = bed.gate.take_outcome()
    assert outcome.why == "unknown"
    stub.hang("nvmlInitWithFlags", is_hanging=False)


def test_an_order_that_is_not_wanted_any_more_is_never_sent(make: Make, stub: NvmlStub, dead: int) -> None:
    """The user has ended the run meanwhile."""
    stub.set(gpu=0, frees_ms=NEVER_MS)
    bed = make(60.0)
    bed.gate.attempt_stopped({dead: 0}, [GPU])
    assert bed.gate.holds(ORDER)
    for order in (Ack(seq=3), Stop(attempt=0, grace_s=0.0)):
        assert not bed.gate.holds(order)
        assert asking(), "of what is before it, it says nothing"
    assert not bed.gate.holds(Finish(exit_code=1))
    wait_until(lambda: not asking(), 20, "the thread to end")
    assert not bed.turn() and bed.gate.take_outcome() == []


def test_what_is_heard_too_late_of_an_earlier_attempt_lets_nothing_pass(make: Make, stub: NvmlStub, dead: int) -> None:
    """It was posted before that attempt was forgotten, and is read after the next has ended."""
    bed = make(60.0)
    stub.set(gpu=0, frees_ms=NEVER_MS)
    bed.gate.attempt_stopped({1: 0}, [GPU])
    assert bed.gate.holds(ORDER)
    stub.set(gpu=0, frees_ms=0)
    wait_until(lambda: not asking(), 20, "the first answer, which is posted by then")
    stub.set(gpu=0, frees_ms=NEVER_MS)
    bed.gate.attempt_stopped({dead: 0}, [GPU])
    later = Start(attempt=2)
    assert bed.gate.holds(later)
    assert not bed.turn()
    stub.set(gpu=0, frees_ms=0)
    wait_until(bed.turn, 20, "the order")
    assert bed.sent == [later]


def test_who_a_process_is_of() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        owner = find_owner(process.pid)
        assert owner is not None and owner.command == "sleep" and owner.user
        process.kill()
        wait_until(lambda: find_owner(process.pid) is None, 10, "a process that has ended, and is not reaped")
    finally:
        process.kill()
        process.wait()
    assert find_owner(process.pid) is None
    assert find_owner(os.getpid()) is not None
