from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire.board import OPS, PHASES, Board
from guardrun.launcher.base.processes import short_command
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.procfs import read_own_io, read_stat, read_threads, read_wchan
from guardrun.supervisor.collect.ranks import look as looks
from guardrun.supervisor.collect.ranks.boards import open_boards
from guardrun.supervisor.collect.ranks.look import MAX_THREADS, LookResult, limit_s, take_look
from guardrun.supervisor.collect.ranks.stack_dumps import find_pyspy
from guardrun.supervisor.engine.model.looks import ProcessLook, RankLook
from guardrun.supervisor.engine.observation.rank_activity import QUIET_IO_BYTES_S, RankActivity, judge
from tests.collect.conftest import Script, StartScript, is_asleep
from tests.support.processes import descendants
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

SLEEPING = """
import threading, time
def helper():
    time.sleep(60)
def inner():
    print('ready', flush=True)
    time.sleep(60)  # here
threading.Thread(target=helper, name='helper', daemon=True).start()
inner()
"""
SPINNING = """
def spin():
    print('ready', flush=True)
    while True:
        pass
spin()
"""
BUSY = """
import time
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
def a(): work(0.04)
def b(): work(0.04)
def c(): work(0.04)
def d(): work(0.04)
def e(): work(0.04)
print('ready', flush=True)
while True:
    for function in (a, b, c, d, e):
        function()
"""
"""Samples 0.15 s apart fall into different functions of its 0.2 s round."""
FAMILY = """
import multiprocessing, time
def work(queue):
    queue.put(1)
    time.sleep(60)  # working
if __name__ == '__main__':
    context = multiprocessing.get_context('fork')
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(queue,), daemon=True) for _ in range(2)]
    [worker.start() for worker in workers]
    [queue.get() for _ in workers]
    import subprocess
    other = subprocess.Popen(['sleep', '60'])
    print('ready', flush=True)
    time.sleep(60)
"""
UNINTERRUPTIBLE = """
import os, sys
def wait_for_ever():
    print('ready', flush=True)
    # The parent of a vfork waits in state D until the child execs, which here first opens a pipe nobody writes to.
    os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
wait_for_ever()
"""
CROWDED = """
import threading, time
for _ in range(600):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('ready', flush=True)
time.sleep(60)
"""
HOOKED = """
import threading, time
def beat():
    while True:
        time.sleep(0.005)
def heart():
    print('ready', flush=True)
    print(threading.get_native_id(), flush=True)
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
    beat()
threading.Thread(target=heart, daemon=True).start()
time.sleep(60)
"""


class Looker:
    """Looks as the supervisor does."""

    def __init__(self, sockets_dir: Path, clock: EngineClock) -> None:
        self.sockets_dir = sockets_dir
        self.clock = clock
        self.folder = sockets_dir / "looks" / "1"

    def look(self, *scripts: Script, samples: int = 3, pyspy: str | None = None) -> LookResult:
        boards = open_boards(self.sockets_dir, 0, range(len(scripts)))
        try:
            return take_look(
                0,
                [script.rank(number) for number, script in enumerate(scripts)],
                boards=boards,
                clock=self.clock,
                sockets_dir=self.sockets_dir,
                folder=self.folder,
                samples=samples,
                pyspy=pyspy,
            )
        finally:
            for board in boards.values():
                board.close()

    def one(self, script: Script) -> RankLook:
        result = self.look(script)
        assert result.missing == {}
        return result.ranks[0]


@pytest.fixture
def looker(tmp_path: Path, clock: EngineClock) -> Looker:
    return Looker(tmp_path, clock)


BESIDE = """
import sys, threading, time
def monitor():
    while True:
        for name in ("stat", "status", "io", "smaps_rollup", "../meminfo", "../stat", "../loadavg"):
            with open(f"/proc/self/{name}") as file:
                file.read()
        time.sleep(0.1)
def monitor_of_many_cpus():
    while True:
        with open(sys.executable, "rb", buffering=0) as file:  # as large as /proc/stat is there, in one piece
            file.read(40_000)
        time.sleep(0.5)
def load():
    with open(sys.executable, "rb") as file:
        while True:
            file.seek(0)
            while file.read(1 << 22):  # on a busy machine it has few turns
                time.sleep(0.1)
threading.Thread(target=BESIDE, daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("beside", "expected"),
    [("monitor", RankActivity.IDLE), ("monitor_of_many_cpus", RankActivity.IDLE), ("load", RankActivity.BUSY)],
)
def test_what_other_threads_read_is_told_apart(
    start_script: StartScript, looker: Looker, beside: str, expected: RankActivity
) -> None:
    script = start_script(BESIDE.replace("BESIDE", beside))
    before = looker.one(script)
    time.sleep(2.0)
    enough = before.process.beside_bytes + 4 * QUIET_IO_BYTES_S
    wait_until(lambda: read_own_io(script.pid).beside_bytes > enough, 60, "its reading")
    after = looker.one(script)
    assert after.process.beside_bytes - before.process.beside_bytes > 2 * QUIET_IO_BYTES_S, "it has read a lot"
    assert judge(before, after).doing is expected


def functions(process: ProcessLook) -> list[str]:
    return [frame.function for frame in process.threads[0].frames]


def test_a_sleeping_rank_is_idle_in_one_place_and_a_person_can_read_where(
    start_script: StartScript, looker: Looker
) -> None:
    script = start_script(SLEEPING)
    look = looker.one(script)
    assert look.global_rank == 0 and look.at_s == pytest.approx(looker.clock.now(), abs=5)
    process = look.process
    assert (process.pid, process.source, process.trouble, process.variety) == (script.pid, "py-spy", "", [])
    assert process.state == "S" and process.switches > 0 and process.io_bytes > 0
    assert process.command.endswith(f"{script.path}"[:60]) or script.path.name in process.command
    assert functions(process) == ["inner", "<module>"]
    assert [thread.name for thread in process.threads] == ["MainThread", "helper"]
    assert process.threads[0].switches > 0
    assert look.heart_s == 0 and look.phase == "" and look.children == []
    text = (looker.folder / f"rank-0-pid-{script.pid}.txt").read_text()
    assert f'  File "{script.path}", line {script.line_of("# here")}, in inner\n' in text
    assert "state S: sleeping" in text and "main" in text
    assert len(list((looker.folder / "raw").glob("*.json"))) == 1
    msgspec.json.encode(look)


def test_spinning_is_told_from_busy_by_the_variety_of_places(start_script: StartScript, looker: Looker) -> None:
    spinning, busy = start_script(SPINNING, ends_asleep=False), start_script(BUSY, ends_asleep=False)
    result = looker.look(spinning, busy, samples=5)
    spins, works = (look.process for look in result.ranks)
    assert spins.state == works.state == "R"
    assert {stack[0].function for stack in spins.variety} == {"spin"} and spins.variety
    assert len({tuple(frame.function for frame in stack) for stack in works.variety}) >= 2
    assert all(0 < len(stack) <= 6 for stack in works.variety)
    later = looker.one(spinning).process
    assert later.cpu_s > spins.cpu_s


def test_the_whole_tree_is_looked_at(start_script: StartScript, looker: Looker) -> None:
    script = start_script(FAMILY)
    wait_until(lambda: all(is_asleep(child.pid) for child in descendants(script.pid)), 30, "all to be where they stay")
    look = looker.one(script)
    assert len(look.children) == 3
    workers = [child for child in look.children if child.threads]
    assert [child.threads[0].frames[0].function for child in workers] == ["work", "work"]
    (other,) = (child for child in look.children if not child.threads)
    assert (other.command, other.trouble, other.ppid) == ("sleep", "not a Python process", script.pid)
    assert len(list(looker.folder.glob("rank-0-pid-*.txt"))) == 4


def test_a_stopped_rank_is_looked_at_without_waking_it(start_script: StartScript, looker: Looker) -> None:
    script = start_script(SPINNING, ends_asleep=False)
    os.kill(script.pid, signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(script.pid)) is not None and stat.state == "T", 5, "the stop")
    process = looker.one(script).process
    assert process.state == "T" and process.variety == []
    assert functions(process)[0] == "spin"
    assert process.wchan in ("do_signal_stop", "")


def test_a_rank_in_uninterruptible_wait_is_looked_at_and_not_touched(
    start_script: StartScript, looker: Looker, make_board: Callable[..., Board], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = start_script(UNINTERRUPTIBLE, str(tmp_path / "pipe"), ends_asleep=False)
    make_board(0, 0, script.pid, DUMP_SIGNAL=int(signal.SIGUSR2))
    try:
        wait_until(lambda: (stat := read_stat(script.pid)) is not None and stat.state == "D", 5, "state D")
        wait_until(lambda: read_wchan(script.pid), 5, "it to be off its CPU, too: it is in that state before")
        look = looker.one(script)
        assert (look.process.state, functions(look.process)[0]) == ("D", "wait_for_ever")
        assert look.process.wchan and len(look.children) == 1
        assert looker.look(script, pyspy="").ranks[0].process.trouble.endswith("it can't write its stacks in state D")
    finally:
        with (tmp_path / "pipe").open("wb"):
            script.process.wait(60)


def test_what_the_hooks_cost_is_not_the_ranks(
    start_script: StartScript, looker: Looker, make_board: Callable[..., Board]
) -> None:
    script = start_script(HOOKED)
    assert script.process.stdout is not None
    tid = int(script.process.stdout.readline())
    wait_until(
        lambda: any(t.tid == tid and t.cpu_s >= 0.3 for t in read_threads(script.pid)), 10, "the heart's CPU use"
    )
    with_heart = looker.one(script).process
    now_ns = time.monotonic_ns()
    make_board(
        0,
        0,
        script.pid,
        HEART_TID=tid,
        HEART_NS=now_ns,
        COLLECTIVES=7,
        COLLECTIVE_SINCE_NS=now_ns,
        COLLECTIVE_OP=OPS.index("barrier"),
        GROUP_SEQ=9,
        PHASE=PHASES.index("eval"),
        MILESTONES=3,
        INIT_SINCE_NS=now_ns,
        DATA_SINCE_NS=now_ns,
        SAVE_SINCE_NS=now_ns,
        GC_SINCE_NS=now_ns,
    )
    look = looker.one(script)
    assert look.process.cpu_s < with_heart.cpu_s - 0.2
    assert look.process.switches < with_heart.switches
    if sys.version_info >= (3, 11):  # before, py-spy tells no thread's id, and this one is known by nothing else
        assert [thread.is_main for thread in look.process.threads] == [True]
    assert len(with_heart.threads) == 2
    assert (look.in_collective, look.collectives, look.group_seq) == ("barrier", 7, 9)
    assert (look.phase, look.milestones) == ("eval", 3)
    at_s = looker.clock.at_ns(now_ns)
    assert look.heart_s == look.collective_since_s == look.in_init_since_s == at_s
    assert look.in_data_since_s == look.in_save_since_s == look.gc_since_s == at_s
    assert "inside barrier for" in next(looker.folder.glob("*.txt")).read_text()


def test_where_py_spy_is_missing_a_rank_still_shows_its_state(
    start_script: StartScript, looker: Looker, make_board: Callable[..., Board]
) -> None:
    hooked, bare = start_script(SLEEPING), start_script(SLEEPING)
    make_board(0, 0, hooked.pid, DUMP_SIGNAL=int(signal.SIGUSR2))
    result = looker.look(hooked, bare, pyspy="")
    first, second = (look.process for look in result.ranks)
    assert first.trouble == "py-spy is not installed; the rank's hooks are not there to be asked"
    assert (second.state, second.threads, second.trouble) == ("S", [], "py-spy is not installed")
    assert second.switches > 0


def test_a_rank_that_is_gone_is_missing_and_the_others_are_seen(start_script: StartScript, looker: Looker) -> None:
    gone, zombie, alive = start_script(SLEEPING), start_script(SLEEPING), start_script(SLEEPING)
    gone.process.kill()
    gone.process.wait()
    os.kill(zombie.pid, signal.SIGKILL)
    wait_until(lambda: (stat := read_stat(zombie.pid)) is not None and stat.state == "Z", 5, "the zombie")
    result = looker.look(gone, zombie, alive)
    assert result.missing == {0: "the process is gone"}
    assert [(look.global_rank, look.process.state) for look in result.ranks] == [(1, "Z"), (2, "S")]


def test_a_folder_that_cannot_be_written_costs_only_the_files(start_script: StartScript, looker: Looker) -> None:
    script = start_script(SLEEPING)
    looker.folder = script.path / "below a file"
    assert functions(looker.one(script).process) == ["inner", "<module>"]


@pytest.mark.usefixtures("own_limits")
def test_a_py_spy_that_hangs_costs_no_more_than_the_limit(
    start_script: StartScript, looker: Looker, tmp_path: Path
) -> None:
    hanging = tmp_path / "py-spy"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o700)
    script = start_script(FAMILY)
    began = time.monotonic()
    result = looker.look(script, pyspy=str(hanging))
    assert time.monotonic() - began < limit_s(1) + 30
    assert result.took_s < limit_s(1) + 30
    assert result.ranks[0].process.trouble.startswith("py-spy took longer than")
    assert len(result.ranks[0].children) == 3


@pytest.mark.usefixtures("own_limits")
def test_a_rank_of_many_threads_has_longer(
    start_script: StartScript, looker: Looker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limit_s(1, 600) > limit_s(1) + 2
    monkeypatch.setattr(looks, "_THREAD_S", 0.02)
    slow = tmp_path / "py-spy"
    slow.write_text(f'#!/bin/sh\nsleep 2.1\nexec "{find_pyspy()}" "$@"\n')
    slow.chmod(0o700)
    crowded, small = start_script(CROWDED), start_script(SLEEPING)
    result = looker.look(crowded, small, pyspy=str(slow))
    seen, unseen = (look.process for look in result.ranks)
    assert (functions(seen), len(seen.threads)) == (["<module>"], MAX_THREADS)
    assert (unseen.trouble, unseen.threads) == ("py-spy took longer than 2.0 s", [])


def test_eight_ranks_are_looked_at_well_within_the_limit(start_script: StartScript, looker: Looker) -> None:
    scripts = [start_script(SLEEPING) for _ in range(8)]

    def look_in_time() -> LookResult | None:
        result = looker.look(*scripts)
        assert [functions(look.process)[0] for look in result.ranks] == ["inner"] * 8
        return result if result.took_s < limit_s(8) else None

    found = wait_until(look_in_time, 60, "a look for which the machine has time")
    assert found is not None
    print(f"{found.took_s:.2f} s")


def test_a_command_tells_the_script_and_no_secret() -> None:
    assert short_command(["/usr/bin/python3.11", "-u", "train.py", "--key", "s3cret"]) == "python3.11 -u train.py"
    assert short_command(["python", "-m", "pkg.train", "--key=s3cret"]) == "python -m pkg.train"
    assert short_command(["python", "-c", "key = 's3cret'", "x"]) == "python -c …"
    assert short_command(["/bin/curl", "-H", "key: s3cret"]) == "curl"
    assert short_command([]) == ""
