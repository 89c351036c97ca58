"""A rank that trains, is profiled in the midst of it, and does what speaks against that; writes what came of it.

argv: a file; then `all`, or `exit`, `raise`: to end while the profiler is on.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler

from guardrun.hooks.examine import kineto, profiling
from guardrun.hooks.examine.profiling import Profiling
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.wire.examinations import profile_name

rank = ranks.active
assert rank is not None
TRACE = Path(rank.sockets, profile_name(0, 0))
CPU = [torch.profiler.ProfilerActivity.CPU]
told: dict[str, Any] = {}


class Training:
    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.model(torch.randn(4, 8)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def digest(self) -> str:
        data = b"".join(one.detach().numpy().tobytes() for one in self.model.parameters())
        return hashlib.sha256(data + torch.get_rng_state().numpy().tobytes()).hexdigest()


def ask(**changes: Any) -> Profiling:
    assert rank is not None
    return Profiling(rank, {"steps": 2, "seconds": 60, **changes})


def answer(one: Profiling, now_ns: int | None = None) -> Any:
    """What the hooks' thread would answer, by a thread that is not the one that trains."""
    found: list[Any] = []

    def beat() -> None:
        try:
            found.append(one.on_beat(time.monotonic_ns() if now_ns is None else now_ns))
        except ValueError as error:
            found.append(str(error))

    thread = threading.Thread(target=beat)
    thread.start()
    thread.join()
    one.end()
    return found[0]


def what_is_left() -> dict[str, Any]:
    names = [(place, name) for place in kineto.PLACES for name in kineto.STARTS]
    assert rank is not None
    return {
        "functions": [str(getattr(sys.modules[place], name, None)) for place, name in names],
        "environment": dict(os.environ),
        "is_on": profiler._is_profiler_enabled or torch.autograd._profiler_enabled(),
        "watched": str(rank.steps._and_then.__qualname__),  # type: ignore[union-attr]  # the one class that there is
        "pending": len(kineto._pending),
        "threads": threading.active_count(),
    }


def bits() -> None:
    plain, profiled = Training(), Training()
    torch.manual_seed(1)
    plain.step(12)
    expected, before = plain.digest(), what_is_left()
    torch.manual_seed(1)
    profiled.step(2)
    one = ask()
    profiled.step(10)
    assert profiled.digest() == expected
    described = answer(one)
    assert what_is_left() == before, (before, what_is_left())
    trace = json.loads(TRACE.read_text())
    described["marks"] = sum(event["name"].startswith("guardrun.step#") for event in trace["traceEvents"])
    told["bits"] = described


def own_before() -> None:
    training = Training()
    with torch.profiler.profile(activities=CPU):
        training.step()
        try:
            ask()
        except ValueError as error:
            told["own before"] = str(error)


def own_warming_up() -> None:
    """One that is prepared, and starts some steps later."""
    training, found = Training(), []

    def keep(own: Any) -> None:
        found.append([event.name for event in own.events()].count("aten::addmm"))

    schedule = torch.profiler.schedule(wait=1, warmup=2, active=1, repeat=1)
    with torch.profiler.profile(activities=CPU, schedule=schedule, on_trace_ready=keep) as own:
        training.step()
        own.step()
        try:
            ask()
        except ValueError as error:
            told["own warming up"] = str(error)
        for _ in range(3):
            training.step()
            own.step()
    assert found == [2], found


def own_meanwhile() -> None:
    """A profiler that has begun to wait when ours comes, and starts while that is on."""
    training, before = Training(), what_is_left()
    one = ask(steps=20)
    training.step(5)
    assert profiler._is_profiler_enabled
    with torch.profiler.profile(activities=CPU) as own:
        training.step(2)
    events = [event.name for event in own.events()]
    assert events.count("aten::addmm") == 4 and what_is_left() == before
    told["own meanwhile"] = answer(one)


def own_in_a_thread() -> None:
    training, found = Training(), []

    def work() -> None:
        with torch.profiler.profile(activities=CPU) as own:
            torch.ones(2) + 1
        found.append([event.name for event in own.events()].count("aten::add"))

    one = ask(steps=20)
    training.step(5)
    thread = threading.Thread(target=work)
    thread.start()
    while one._recorder.is_on:  # without a step: all twenty could be over before the thread has begun
        time.sleep(0.001)
    while thread.is_alive():
        training.step()
    assert found == [1], found
    told["own in a thread"] = answer(one)


def fork() -> None:
    training = Training()
    one = ask(steps=20)
    training.step(6)
    with profiler.record_function("a stretch that has ended"):
        pass
    pid = os.fork()
    if not pid:
        print("child")
        assert rank is not None
        raise SystemExit(4 + (not rank.outbox.is_open))  # it is no rank any more
    told["child"] = os.waitpid(pid, 0)[1] >> 8
    told["fork"] = answer(one)


def long_step() -> None:
    """A step that does not end: the profiler is taken off in the midst of it."""
    training = Training()
    one = ask(steps=20)
    training.step(5)
    late_ns = one.ends_ns - 1  # however long steps took before
    threading.Thread(target=lambda: one.on_beat(late_ns)).start()
    until = time.monotonic() + 60
    while profiler._is_profiler_enabled:
        torch.ones(2) + 1
        assert time.monotonic() < until
    told["long step"] = answer(one)


def no_python() -> None:
    """A step that does not end, and runs no Python: it is told, and the profiler goes when the step does."""
    training = Training()
    one = ask(steps=20, seconds=10)
    training.step(5)  # before the last of those that are taken where allocations are not counted
    told["no Python"] = answer(one, one.ends_ns + 6_000_000_000)
    assert not profiler._is_profiler_enabled  # the answer's thread had it taken off here, with the next line


def no_step() -> None:
    one = ask(seconds=10)
    told["no step"] = answer(one, one.ends_ns)
    one = ask()
    one.ends_ns = time.monotonic_ns()
    told["called off"] = answer(one)
    Training().step(4)
    assert not profiler._is_profiler_enabled


def compiled() -> None:
    training = Training()
    training.model.compile(backend="eager")
    training.step(3)
    graphs = dict(torch._dynamo.utils.counters["stats"])
    one = ask()
    training.step(6)
    answer(one)
    assert dict(torch._dynamo.utils.counters["stats"]) == graphs

    def update() -> None:
        training.optimizer.step()

    whole = torch.compile(update, backend="eager")
    one = ask()
    for _ in range(6):
        training.model(torch.randn(4, 8)).sum().backward()
        whole()
    answer(one)  # the next one is not refused: what was compiled has ended by then


def several_optimizers() -> None:
    training = Training()
    other = torch.optim.SGD(training.model.parameters(), 0.1)
    one = ask()
    for _ in range(6):
        training.step()
        training.model(torch.randn(4, 8)).sum().backward()
        other.step()
    told["several optimizers"] = answer(one)


def capture() -> None:
    """While a graph is captured nothing is put on, nor taken off."""
    training = Training()
    assert rank is not None
    rank.words[ranks.Field.CAPTURES] = 1
    one = ask()
    training.step(4)
    assert not profiler._is_profiler_enabled
    rank.words[ranks.Field.CAPTURES] = 0
    training.step(3)
    assert profiler._is_profiler_enabled
    rank.words[ranks.Field.CAPTURES] = 1
    training.step(4)
    assert profiler._is_profiler_enabled
    rank.words[ranks.Field.CAPTURES] = 0
    training.step(3)
    assert not profiler._is_profiler_enabled
    told["capture"] = answer(one)


def no_room() -> None:
    training = Training()
    one = ask()
    training.step(6)
    real = os.statvfs
    os.statvfs = lambda path: real("/proc")
    try:
        told["no room"] = answer(one)
    finally:
        os.statvfs = real


def full() -> None:
    """More than there is room for: fewer steps."""
    training = Training()
    one = ask(steps=20)
    one._allocated = 0
    training.step(5)
    one._allocated = -(1 << 40)
    training.step(20)
    told["full"] = answer(one)


def blind() -> None:
    """Nobody knows how much was recorded."""
    training, real = Training(), profiling.read_allocated
    profiling.read_allocated = lambda: 0
    one = ask(steps=20)
    training.step(20)
    profiling.read_allocated = real
    told["blind"] = answer(one)


def interrupted() -> None:
    """Ctrl-C while the profiler is being taken off, before torch has."""
    training = Training()
    one = ask()
    training.step(4)
    real = profiler.profile.__exit__

    def interrupt(self: Any, *args: Any) -> None:
        profiler.profile.__exit__ = real
        raise KeyboardInterrupt

    profiler.profile.__exit__ = interrupt
    try:
        training.step(2)
    except KeyboardInterrupt:
        told["interrupted"] = profiler._is_profiler_enabled or torch.autograd._profiler_enabled()
    one.end()
    training.step(2)


def signalled() -> None:
    """What a handler of the script's raises while the profiler is taken off is the script's."""
    training = Training()
    one = ask()
    training.step(4)
    real = profiler._run_on_profiler_stop

    def handle(*_: object) -> None:
        raise TimeoutError("the script's")

    def stop() -> None:
        profiler._run_on_profiler_stop = real
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    profiler._run_on_profiler_stop = stop
    try:
        training.step(2)
    except TimeoutError as error:
        told["signalled"] = str(error)
    signal.signal(signal.SIGUSR1, before)
    told["signalled, answer"] = answer(one)
    assert not profiler._is_profiler_enabled


def failing() -> None:
    """An error of torch's while the profiler is taken off in the midst of a step is none of the script's."""
    training = Training()
    one = ask(steps=20)
    training.step(6)
    real = torch.autograd.profiler._disable_profiler

    def disable() -> Any:
        torch.autograd.profiler._disable_profiler = real
        raise RuntimeError("of torch's")

    torch.autograd.profiler._disable_profiler = disable
    pid = os.fork()
    if not pid:
        os._exit(7)
    assert os.waitpid(pid, 0)[1] >> 8 == 7
    told["failing"] = torch.autograd._profiler_enabled()
    one.end()
    training.step(2)


def named() -> None:
    """What the script has named goes on: no other session may follow."""
    training = Training()
    one = ask()
    training.step(3)
    with profiler.record_function("epoch 3"):
        training.step(4)
        answer(one)
        try:
            ask()
        except ValueError as error:
            told["named"] = str(error)


ALL: tuple[Callable[[], None], ...] = (
    bits, own_before, own_warming_up, own_meanwhile, own_in_a_thread, fork, long_step, no_python, no_step, compiled,
    several_optimizers, capture, no_room, full, blind, interrupted, signalled, failing, named,
)  # fmt: skip

if __name__ == "__main__":
    if sys.argv[2] == "all":
        for scene in ALL:
            scene()
        Path(sys.argv[1]).write_text(json.dumps(told))
    else:
        profiled, ours = Training(), ask()
        profiled.step(4)
        assert profiler._is_profiler_enabled
        if sys.argv[2] == "raise":
            raise KeyError("the script's own")
        sys.exit(3)
