"""The hooks' own thread: it beats while the interpreter runs, drops what can't be sent, and is in nobody's way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from guardrun.hooks.rank.rank import MAX_WAITING, Outbox
from guardrun.hooks.wire.board import MAGIC, Field, Milestone
from guardrun.hooks.wire.messages import Beat, Hello, HookFailed
from tests.hooks.bed import Bed, finish
from tests.support.waiting import wait_until

SLEEP = "import time; time.sleep(600)"


def test_a_rank_shows_itself_and_beats(bed: Bed) -> None:
    process = bed.start(["-c", SLEEP])
    bed.wait_for(Beat)
    board = bed.board()
    assert (board[Field.MAGIC], board[Field.PID]) == (MAGIC, process.pid)
    assert Path(f"/proc/{process.pid}/task/{board[Field.HEART_TID]}").exists()
    assert bed.milestones() == {Milestone.HOOKED}
    first = board[Field.HEART_NS]
    second = bed.wait_until(Field.HEART_NS, lambda value: value != first)
    assert 0 < second - first < 10e9


def test_a_held_gil_stops_the_heart_and_nothing_else(bed: Bed) -> None:
    """The board can still be read, and the heart's age tells."""
    code = """
import ctypes, time
from guardrun.hooks import step
from guardrun.hooks.rank.rank import active
from guardrun.hooks.wire.board import Field
step(3)
while not active.words[Field.HEART_NS]: time.sleep(0.01)
ctypes.PyDLL(None).sleep(200)
"""
    process = bed.start(["-c", code])
    signum = bed.wait_until(Field.DUMP_SIGNAL)
    bed.wait_until(Field.HEART_NS)
    wait_until(lambda: _waits_in_c(process.pid), 20, "the sleep in C")
    heart = bed.board()[Field.HEART_NS]
    time.sleep(2.2)  # two beats
    assert process.poll() is None
    assert (bed.board()[Field.HEART_NS], bed.board()[Field.STEP]) == (heart, 3)
    os.kill(process.pid, signum)  # which ends the C library's sleep
    assert finish(process).returncode == 0


def test_a_heart_that_has_ended_is_not_taken_for_one_that_is_held(bed: Bed) -> None:
    code = """
import os, time
from guardrun.hooks.rank import rank
while not os.path.exists(os.environ["SIGN"]): time.sleep(0.01)
rank.active.outbox.wait_for("stop", 60)
time.sleep(600)
"""
    sign = bed.sockets / "heard"
    process = bed.start(["-c", code], more={"SIGN": str(sign)})
    bed.wait_for(Hello)
    sign.touch()
    bed.wait_until(Field.HEART_NS, lambda value: value == 0)
    assert process.poll() is None


def test_a_heart_that_could_not_be_started_is_not_waited_for_at_the_end(bed: Bed) -> None:
    """As where the user may have no more processes (ulimit -u)."""
    patch = """
from guardrun.hooks.beat import heartbeat
from guardrun.hooks.rank import uncaught_exception
uncaught_exception.STOP_S = 3600.0
def refuse(*arguments): raise RuntimeError("can't start new thread")
heartbeat.start_new_thread = refuse
"""
    (bed.sockets / "sitecustomize.py").write_text(patch)
    bed.make_board()
    code = """
from guardrun.hooks.rank import rank
from guardrun.hooks.wire.board import Field
print(rank.active.words[Field.HEART_NS])
"""
    environment = bed.environment(base={**os.environ, "PYTHONPATH": str(bed.sockets)})
    done = finish(bed.start(["-c", code], env=environment))
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_a_heart_that_has_failed_is_not_waited_for_at_the_end(bed: Bed) -> None:
    code = """
import time
from guardrun.hooks.rank import rank, uncaught_exception
from guardrun.hooks.wire.board import Field
uncaught_exception.STOP_S = 3600.0
rank.active.send("There is no such message")
while rank.active.words[Field.HEART_NS]: time.sleep(0.01)
"""
    done = bed.run(code)
    assert done.returncode == 0 and "hooks: heart: AttributeError" in done.stderr


def test_a_dead_supervisor_costs_training_nothing(bed: Bed) -> None:
    bed.stop_listening()
    code = f"""
import time
from guardrun.hooks.rank import rank
began = time.monotonic()
for i in range({2 * MAX_WAITING}):
    rank.active.send("CheckpointLoaded", path=str(i), reader="test")
print(time.monotonic() - began < 30)
time.sleep(0.6)
print(rank.active.outbox.dropped > 0)
"""
    done = bed.run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", "")


def test_a_message_that_is_too_long_is_dropped_and_counted(bed: Bed) -> None:
    code = """
import time
from guardrun.hooks.rank import rank
rank.active.send("CheckpointLoaded", path="x" * 1_000_000, reader="test")
time.sleep(600)
"""
    process = bed.start(["-c", code])
    beats = wait_until(lambda: [beat for beat in bed.hear_all(Beat) if beat.dropped], 60, "the count")
    assert beats[0].dropped == 1 and process.poll() is None


def test_signals_reach_the_main_thread(bed: Bed) -> None:
    process = bed.start(["-c", SLEEP])
    bed.wait_for(Beat)
    tid = bed.board()[Field.HEART_TID]
    blocked = _blocked(Path(f"/proc/{process.pid}/task/{tid}"))
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        assert blocked & 1 << (signum - 1)
    assert not blocked & 1 << (signal.SIGSEGV - 1)


def test_stacks_are_written_on_a_signal_even_while_the_gil_is_held(bed: Bed) -> None:
    """Long on a busy machine: whoever holds the GIL does so for seconds."""
    process = bed.start(["-c", "import ctypes\ndef hold(): ctypes.PyDLL(None).sleep(200)\nhold()"])
    signum = bed.wait_until(Field.DUMP_SIGNAL)
    wait_until(lambda: _waits_in_c(process.pid), 20, "the sleep in C")
    threads = [path for path in Path(f"/proc/{process.pid}/task").iterdir() if path.name != str(process.pid)]
    assert [path.name for path in threads if not _blocked(path) >> (signum - 1) & 1] == [], "it would take the signal"
    os.kill(process.pid, signum)
    path = bed.sockets / "stacks-0-0"
    wait_until(lambda: "in hold" in path.read_text(), 10, "the stacks")
    text = path.read_text()
    assert text.count("Thread 0x") + text.count("Current thread 0x") >= 2
    assert finish(process).returncode == 0  # The C library's sleep ends with any signal.


def _blocked(thread: Path) -> int:
    """A bit for each signal."""
    lines = (thread / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16)


def _waits_in_c(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("35", "230", "115", "101")  # (clock_)nanosleep


def test_a_signal_that_the_script_has_is_left_to_it(bed: Bed) -> None:
    """A sitecustomize, or what the launcher's environment preloads, may have taken our first choice."""
    code = "import signal; signal.signal(signal.SIGRTMAX - 2, signal.SIG_IGN); input()"
    (bed.sockets / "sitecustomize.py").write_text(code.replace("input()", ""))
    bed.make_board()
    process = bed.start(["-c", SLEEP], env=bed.environment(base={**os.environ, "PYTHONPATH": str(bed.sockets)}))
    assert bed.wait_until(Field.DUMP_SIGNAL) == signal.SIGRTMAX - 3
    assert process.poll() is None


def test_a_hook_that_fails_is_said_once(bed: Bed) -> None:
    code = """
import time
from guardrun.hooks.rank import rank
for _ in range(5): rank.active.fail("optimizer", ValueError("x" * 10_000))
time.sleep(0.5)
"""
    bed.run(code)
    failed = bed.hear_all(HookFailed)
    assert [message.hook for message in failed] == ["optimizer"]
    assert len(failed[0].error) <= 500


def test_the_outbox_is_bounded() -> None:
    outbox = Outbox()
    for n in range(MAX_WAITING + 5):
        outbox.put("kind", {"n": n})
    assert outbox.dropped == 5
    assert outbox.get(0) == ("kind", {"n": 0})
    assert not outbox.wait_for("flush", 0.01)
    closed = Outbox(is_open=False)
    closed.put("kind", {})
    assert closed.get(0) is None
    assert not closed.wait_for("flush", 10)


ASIDE = """
import sys, threading, time, torch, torch.distributed as dist
from guardrun.hooks import step
from guardrun.hooks.wire.board import Field
from guardrun.hooks.rank.rank import active
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
group = dist.new_group([0])
def seen(work, group=None, beats=2):
    before = active.words[Field.GROUP_SEQ]
    for _ in range(3):
        work(group)
    for _ in range(beats):
        now = active.words[Field.HEART_NS]
        while active.words[Field.HEART_NS] == now: time.sleep(0.05)
    print(active.words[Field.GROUP_SEQ] - before, end=" ")
def here(group): dist.all_reduce(torch.ones(1), group=group)
def aside(group):
    thread = threading.Thread(target=here, args=(group,))
    thread.start()
    thread.join()
seen(aside, group)
step(1)
seen(aside, group)
seen(aside, group)
seen(aside)
seen(here, group)
dist.destroy_process_group()
"""


def test_collectives_of_other_threads_on_a_group_of_their_own_are_no_progress(bed: Bed, tmp_path: Path) -> None:
    """Long on a busy machine: five times two beats."""
    done = bed.run(ASIDE, str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    # Before anything else has advanced they count. Once training uses the group, all of it does, and what was left out.
    before, first, then, default, own = (int(word) for word in done.stdout.split())
    assert (before, then, default) == (3, 0, 3) and first <= 3
    assert own == 3 + 3 + (3 - first)
