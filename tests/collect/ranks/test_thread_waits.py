"""A standstill that nothing can end: real processes that are in one, and as many that only look like it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import read_stat, read_threads
from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.thread_waits import (
    NATIVE,
    Call,
    Standstill,
    parse_call,
    read_standstill,
)
from guardrun.supervisor.engine.observation.deadlock import Waits
from tests.collect.conftest import StartScript
from tests.support.waiting import wait_until

HEAD = """
import multiprocessing as mp, os, queue, signal, socket, subprocess, sys, threading, time
def ready():
    print('ready', flush=True)
def child(code):
    return subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.DEVNULL)
"""

FAULTS = {
    "two threads take two locks in different order": """
a, b, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
def other():
    with b:
        both.wait()
        with a: pass
threading.Thread(target=other, daemon=True).start()
with a:
    both.wait()
    ready()
    with b: pass
""",
    "a lock taken twice": "lock = threading.Lock()\nlock.acquire()\nready()\nlock.acquire()",
    "a join of a thread that waits for what this one holds": """
lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=lock.acquire, daemon=True)
thread.start()
ready()
thread.join()
""",
    "a queue that nobody fills": "ready()\nqueue.Queue().get()",
    "a simple queue that nobody fills": "ready()\nqueue.SimpleQueue().get()",
    "a condition that nobody signals": "c = threading.Condition()\nready()\nwith c: c.wait()",
    "the answer of a process that is dead, over a pipe whose other end was never closed": """
mine, its = os.pipe()
child('pass').wait()
ready()
os.read(mine, 1)
""",
    "the same, over a connection": """
mine, its = mp.Pipe()
child('pass').wait()
ready()
mine.recv()
""",
    "a process that is stopped": """
below = child('import time; time.sleep(600)')
os.kill(below.pid, signal.SIGSTOP)
ready()
below.wait()
""",
    "a process that stands still itself": """
below = child('import threading; l = threading.Lock(); l.acquire(); l.acquire()')
ready()
below.wait()
""",
    "a lock, beside the monitor of a progress bar": """
import types
folder = os.path.join(sys.argv[1], 'tqdm')
os.makedirs(folder)
with open(os.path.join(folder, '_monitor.py'), 'w') as file:
    file.write('def run(event):\\n    while not event.wait(10): pass\\n')
sys.path.insert(0, folder)
import _monitor
threading.Thread(target=_monitor.run, args=(threading.Event(),), daemon=True).start()
lock = threading.Lock()
lock.acquire()
ready()
lock.acquire()
""",
}

DECOYS = {
    "sleep": "ready()\ntime.sleep(600)",
    "a lock with a time limit": "lock = threading.Lock()\nlock.acquire()\nready()\nlock.acquire(timeout=600)",
    "a lock that a timer releases": """
lock = threading.Lock()
lock.acquire()
timer = threading.Timer(600, lock.release)
timer.daemon = True
timer.start()
ready()
lock.acquire()
""",
    "a queue that a thread fills from elsewhere": """
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
q = queue.Queue()
threading.Thread(target=lambda: q.put(client.recv(1)), daemon=True).start()
ready()
q.get()
""",
    "an answer over TCP": """
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
ready()
client.recv(1)
""",
    "a client that has not come yet": "server = socket.create_server(('127.0.0.1', 0))\nready()\nserver.accept()",
    "a process that works for a long time": """
below = child('import time; time.sleep(600)')
ready()
below.wait()
""",
    "what such a process writes": """
mine, its = os.pipe()
below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=its)
ready()
os.read(mine, 1)
""",
    "what one says over a connection": """
mine, its = mp.Pipe()
os.set_inheritable(its.fileno(), True)
below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[its.fileno()])
ready()
mine.recv()
""",
    "standard input": "ready()\nsys.stdin.buffer.read(1)",
    "a named pipe, which anybody may open": """
path = os.path.join(sys.argv[1], 'fifo')
os.mkfifo(path)
fd = os.open(path, os.O_RDWR)
ready()
os.read(fd, 1)
""",
    "an alarm": """
signal.signal(signal.SIGALRM, lambda *_: None)
signal.alarm(600)
lock = threading.Lock()
lock.acquire()
ready()
lock.acquire()
""",
    "a signal": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nready()\nsignal.sigwait([signal.SIGUSR1])",
    "pause": "ready()\nsignal.pause()",
    "a lock shared with other processes": "lock = mp.Lock()\nlock.acquire()\nready()\nlock.acquire()",
    "an event loop": """
import asyncio
async def main():
    ready()
    await asyncio.Event().wait()
asyncio.run(main())
""",
    "a lock beside a thread that polls": """
import select
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lambda: select.select([], [], [], 600), daemon=True).start()
ready()
lock.acquire()
""",
}


@pytest.fixture
def stdin() -> Iterator[int]:
    """An end of a pipe that a script reads as its standard input; the test holds the other."""
    mine, its = os.pipe()
    kept = os.dup(0)
    os.dup2(mine, 0)
    os.close(mine)
    yield its
    os.dup2(kept, 0)
    os.close(kept)
    os.close(its)


def ask(pid: int) -> Standstill:
    return read_standstill(pid, ProcessTable.read(), deadline=time.monotonic() + 20)


def said(pid: int, what: str) -> Standstill:
    """The next answer that says something: of a look for which py-spy was too slow none does."""

    def answer() -> Standstill | None:
        found = ask(pid)
        return found if found.why else None

    found = wait_until(answer, 30, what)
    assert found is not None
    return found


def is_still(pid: int) -> bool:
    """Its main thread sleeps, and did not wake up for a while."""

    def main() -> tuple[str, int]:
        return next(((t.state, t.switches) for t in read_threads(pid) if t.tid == pid), ("", 0))

    before = main()
    time.sleep(0.3)
    return before[0] == "S" and before == main()


@pytest.mark.real("py-spy")
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_left_to_end_it(start_script: StartScript, tmp_path: object, name: str) -> None:
    script = start_script(HEAD + FAULTS[name], str(tmp_path), ends_asleep=False)
    first, again = said(script.pid, name), said(script.pid, name)
    assert first == again
    assert first.key


@pytest.mark.real("py-spy")
@pytest.mark.parametrize("name", DECOYS)
def test_something_may_end_it(start_script: StartScript, stdin: int, tmp_path: object, name: str) -> None:
    """Long on a busy machine: a process is looked at until it has come to rest."""
    script = start_script(HEAD + DECOYS[name], str(tmp_path), ends_asleep=False)
    wait_until(lambda: is_still(script.pid), 30, name)
    asked = ask(script.pid)
    wait_until(lambda: PAUSES.count(script.pid) % 2 == 0, 30, "an answer about native frames")
    assert asked == ask(script.pid) == Standstill()


@pytest.mark.real("py-spy")
def test_a_look_for_a_person_pauses_nobody(start_script: StartScript) -> None:
    script = start_script(HEAD + FAULTS["a lock taken twice"], ends_asleep=False)
    before = PAUSES.count(script.pid)
    wait_until(lambda: is_still(script.pid), 30, "the lock")
    table = ProcessTable.read()
    assert read_standstill(script.pid, table, deadline=time.monotonic() + 20, may_pause=False) == Standstill()
    assert PAUSES.count(script.pid) == before


@pytest.mark.real("py-spy")
@pytest.mark.parametrize("is_paused", [True, False])
def test_what_was_read_before_a_pause_is_not_told_after_it(
    start_script: StartScript, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """A pause wakes its threads: by their counters, it would be told as another standstill than the next look's."""
    script = start_script(HEAD + FAULTS["a lock taken twice"], ends_asleep=False)
    standstill = said(script.pid, "the lock")
    ask_native = NATIVE.ask

    def ask_and_pause(pid: int, *arguments: Any, **more: Any) -> bool | None:
        if is_paused:
            PAUSES.begin(pid)
            PAUSES.end(pid)
        return ask_native(pid, *arguments, **more)

    monkeypatch.setattr(NATIVE, "ask", ask_and_pause)
    if is_paused:
        assert ask(script.pid) == Standstill()
    else:
        assert said(script.pid, "the lock") == standstill


@pytest.mark.real("py-spy")
def test_who_goes_on_is_another_standstill_than_before(start_script: StartScript) -> None:
    """Stopped and let run, or woken by a signal: what was seen before does not count for what is seen now."""
    script = start_script(
        HEAD + "signal.signal(signal.SIGUSR1, lambda *_: None)\nlock = threading.Lock()\nlock.acquire()\nready()\n"
        "lock.acquire()",
        ends_asleep=False,
    )
    before = said(script.pid, "a standstill")
    os.kill(script.pid, signal.SIGUSR1)
    wait_until(lambda: ask(script.pid).key not in ("", before.key), 30, "another")


@pytest.mark.real("py-spy")
def test_a_child_that_is_stopped_and_let_run_by_turns_is_another_each_time(start_script: StartScript) -> None:
    """As under cpulimit."""
    script = start_script(HEAD + FAULTS["a process that is stopped"], ends_asleep=False)
    before = said(script.pid, "a standstill")
    [below] = [stat.pid for stat in ProcessTable.read().stats.values() if stat.ppid == script.pid]
    os.kill(below, signal.SIGCONT)
    os.kill(below, signal.SIGSTOP)
    assert said(script.pid, "the next standstill").key != before.key


@pytest.mark.real("py-spy")
def test_a_process_of_another_user_below_it_may_hold_anything(start_script: StartScript) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")
    script = start_script(
        HEAD + "mine, its = os.pipe()\nos.set_inheritable(its, True)\n"
        "below = subprocess.Popen(['sleep', '600'], pass_fds=[its], user=65534)\n"
        "ready()\nos.read(mine, 1)",
        ends_asleep=False,
    )
    wait_until(lambda: is_still(script.pid), 30, "the read")
    assert ask(script.pid) == Standstill()


def test_a_process_that_is_gone_says_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ask(process.pid) == Standstill()
    assert read_stat(process.pid) is None


def test_the_supervisors_own_threads_are_no_proof() -> None:
    """Of this very process: it runs."""
    assert ask(os.getpid()) == Standstill()
    assert threading.active_count() >= 1


# Pure --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("202 0x5623 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fde\n", Call(Waits.LOCK, on="0x5623")),
        ("202 0x5623 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7fde\n", Call(Waits.LOCK, on="0x5623")),
        ("202 0x5623 0x89 0x0 0x7ffc 0x0 0xffffffff 0x7ffd 0x7fde\n", Call(Waits.OPEN)),
        ("202 0x5623 0x109 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fde\n", Call(Waits.OPEN)),
        ("202 0x5623 0x81 0x1 0x0 0x0 0x0 0x7ffd 0x7fde\n", Call(Waits.OPEN)),
        ("0 0x3 0x7f94 0x1 0x7f94 0x0 0x0 0x7ffe 0x7f94\n", Call(Waits.PIPE, fd=3, on="0x3")),
        ("45 0x9 0x7f94 0x1 0x0 0x0 0x0 0x7ffe 0x7f94\n", Call(Waits.PIPE, fd=9, on="0x9")),
        ("61 0xffffffff 0x7f94 0x0 0x0 0x0 0x0 0x7ffe 0x7f94\n", Call(Waits.CHILD, on="0xffffffff")),
        ("230 0x1 0x1 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f94\n", Call(Waits.OPEN)),
        ("219 0x1 0x1 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f94\n", Call(Waits.OPEN)),
        ("running\n", Call(Waits.OPEN)),
        ("-1 0x7ffe 0x7f94\n", Call(Waits.OPEN)),
        ("", Call(Waits.OPEN)),
        ("202 0xzz 0x189 0x0 0x0 0x0 0x0 0x0 0x0\n", Call(Waits.OPEN)),
    ],
)
def test_calls_are_read(text: str, call: Call) -> None:
    assert parse_call(text, "x86_64") == call
    assert parse_call(text, "riscv64") == Call(Waits.OPEN)
