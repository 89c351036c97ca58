"""Memory of real processes: what is a rank's own, what those below it have come to hold, what is nobody's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire.board import Board, Field
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.ranks.memory_use import MemoryReader, read_sizes
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model.events import MemoryUse, RankReport
from tests.collect.conftest import Script, StandingClock, StartScript
from tests.support.waiting import wait_until

MIB = 1 << 20
HOLDS = """
import mmap, os, resource, signal, sys, time
def take(mib, into):
    into.append(bytearray(b'x') * (mib << 20))
def grow(signum, frame):
    take(30, kept)
kept = []
take(int(sys.argv[1]), kept)
shared = mmap.mmap(-1, 24 << 20)
shared.write(b'x' * (24 << 20))
with open(sys.argv[2], 'w+b') as file:
    file.write(b'x' * (16 << 20))
    mapped = mmap.mmap(file.fileno(), 16 << 20, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
sum(mapped[::4096])
signal.signal(signal.SIGUSR1, grow)
for _ in range(int(sys.argv[3])):
    if os.fork() == 0:
        while True:
            time.sleep(60)
print('ready', flush=True)
while True:
    time.sleep(60)
"""


def read(reader: MemoryReader, script: Script) -> MemoryUse:
    use = reader.read(script.pid, ProcessTable.read())
    assert use is not None
    return use


@pytest.fixture
def holder(start_script: StartScript, tmp_path: Path) -> Callable[[int, int], Script]:
    return lambda mib, children: start_script(HOLDS, str(mib), str(tmp_path / "data"), str(children), ends_asleep=False)


def test_what_is_counted_as_a_ranks_own(holder: Callable[[int, int], Script]) -> None:
    base = read(MemoryReader(), holder(0, 0)).own
    script = holder(64, 0)
    use = read(MemoryReader(), script)
    assert 62 * MIB < use.own - base < 66 * MIB, "not what it shares, nor the mapped file"
    held = read_sizes(script.pid)
    assert held["VmRSS"] > use.own + 24 * MIB + 16 * MIB, "which it has mapped all the same"
    assert 24 * MIB <= use.shared < 28 * MIB
    assert (use.below, use.largest, use.processes) == (0, (0, 0), 0)
    assert 0 < use.used < use.limit
    os.kill(script.pid, signal.SIGUSR1)
    wait_until(lambda: read(MemoryReader(), script).own > use.own + 29 * MIB, 10, "what it takes")


def test_of_processes_below_only_what_they_have_come_to_hold_counts(holder: Callable[[int, int], Script]) -> None:
    """A forked one has its parent's pages mapped: they are counted there."""
    script, reader = holder(64, 3), MemoryReader()
    use = read(reader, script)
    assert use.processes == 3 and use.below < 2 * MIB, "64 MiB each, and their parent's"
    pids = ProcessTable.read().descendants(script.pid)
    os.kill(pids[1], signal.SIGUSR1)
    wait_until(lambda: read(reader, script).below > 29 * MIB, 10, "what one of them takes")
    use = read(reader, script)
    assert use.largest[0] == pids[1] and use.below < 34 * MIB and 29 * MIB < use.largest[1] <= use.below
    os.kill(pids[2], signal.SIGUSR1)
    wait_until(lambda: read(reader, script).below > 59 * MIB, 10, "what another takes")
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: read(reader, script).below < 34 * MIB, 10, "its end")
    assert read(reader, script).largest[0] == pids[2]
    assert read(MemoryReader(), script).below < 2 * MIB, "whoever reads first knows no growth"


def test_the_least_that_a_process_was_seen_with_counts(holder: Callable[[int, int], Script]) -> None:
    """Between fork and exec it has its parent's pages; then little, and then its own."""
    script = holder(64, 1)
    (pid,) = ProcessTable.read().descendants(script.pid)
    reader = MemoryReader()
    start = ProcessTable.read().stats[pid].start
    reader._least[script.pid] = {(pid, start): 20 * MIB}
    assert read(reader, script).below > 44 * MIB
    reader._least[script.pid] = {(pid, start - 1): 20 * MIB}
    assert read(reader, script).below == 0, "another process had its pid"


def test_a_process_that_is_gone_or_dead_holds_nothing(holder: Callable[[int, int], Script]) -> None:
    script, reader = holder(1, 0), MemoryReader()
    script.process.kill()
    os.waitid(os.P_PID, script.pid, os.WEXITED | os.WNOWAIT)
    assert reader.read(script.pid, ProcessTable.read()) is None, "a zombie"
    script.process.wait()
    assert reader.read(script.pid, ProcessTable.read()) is None


def test_ranks_are_read_now_and_then_in_reports_that_are_made_anyway(
    holder: Callable[[int, int], Script],
    make_board: Callable[..., Board],
    tmp_path: Path,
    clock: EngineClock,
    standing_clock: StandingClock,
) -> None:
    script = holder(8, 2)
    board = make_board(0, 0, script.pid)
    sampler = Sampler(clock, tmp_path, memory_window_s=4.0)
    sampler.attempt_started(0, [script.rank()])

    def sample() -> list[MemoryUse | None]:
        board.words[Field.STEP] += 1
        return [report.memory for report in sampler.sample()]

    try:
        (use,) = sample()
        assert use is not None and use.own > 8 * MIB and use.processes == 2
        assert sample() == [None], "too soon"
        standing_clock.now_s += 1.01
        assert sampler.sample() == [], "nothing else has changed"
        assert sample() != [None]
    finally:
        sampler.close()


def test_reports_from_before_have_none() -> None:
    before = msgspec.json.decode(b'{"global_rank": 1, "step": 7}', type=RankReport)
    assert before.memory is None and b"memory" not in msgspec.json.encode(before)
    assert msgspec.json.decode(b"[12]", type=MemoryUse) == MemoryUse(12)
