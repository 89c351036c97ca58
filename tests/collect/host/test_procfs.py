from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from guardrun.supervisor.collect.host import procfs
from guardrun.supervisor.collect.host.process_table import (
    ProcessTable,
    descendants,
    end_processes,
    processes_with_marker,
)
from guardrun.supervisor.collect.host.procfs import (
    parse_io,
    parse_stat,
    parse_status,
    read_stat,
    read_threads,
)
from tests.collect.conftest import StartScript
from tests.support.waiting import wait_until

STAT = (
    b"4242 (a) S (b c)) T 17 4242 17 0 -1 4194304 103 0 0 0 250 50 9 9 20 0 7 0 153817 3133440 384 "
    b"18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
NOBODY = 1 << 22
"""One more than the largest pid that Linux gives."""

SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    stat = parse_stat(STAT)
    assert (stat.pid, stat.comm, stat.state, stat.ppid, stat.start) == (4242, "a) S (b c)", "T", 17, 153817)
    assert stat.cpu_s == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("data", [b"", b"1", b"1 (a", b"1 (a) S 2 3", b") 1 ("])
def test_a_stat_cut_short_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_stat(data)


def test_status_tells_handlers_and_switches() -> None:
    status = parse_status(
        "Name:\ta:b\nTgid:\t7\nUid:\t1\t2\t3\t4\nNSpid:\t7\t1\nSigCgt:\t0000000000000802\n"
        "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n"
    )
    assert status == (7, 2, 0x802, 11)
    assert status.catches(signal.SIGUSR2) and status.catches(2)
    assert not status.catches(signal.SIGUSR1) and not status.catches(0)
    assert parse_status("").switches == 0


def test_io_sums_what_was_read_and_written() -> None:
    assert parse_io("rchar: 10\nwchar: 5\nsyscr: 3\nread_bytes: 100\n") == (10, 5, 3)


def test_every_reader_is_calm_about_a_process_that_is_gone() -> None:
    assert read_stat(NOBODY) is None
    assert procfs.read_status(NOBODY) is None
    assert read_threads(NOBODY) == []
    assert procfs.read_io(NOBODY) == procfs.read_own_io(NOBODY).bytes == -1
    assert procfs.read_wchan(NOBODY) == ""
    assert procfs.read_kernel_stack(NOBODY) == ""
    assert procfs.read_cmdline(NOBODY) == []
    assert procfs.read_exe(NOBODY) == ""
    assert descendants(NOBODY) == []


def test_our_own_process_reads_right() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        stat, status = read_stat("self"), procfs.read_status("self")
        assert stat is not None and status is not None
        assert (stat.pid, stat.ppid, status.tgid) == (os.getpid(), os.getppid(), os.getpid())
        assert status.uid == os.geteuid()
        threads = read_threads(os.getpid())
        assert {os.getpid(), thread.native_id} <= {each.tid for each in threads}
        assert sum(each.switches for each in threads) > 0
        assert procfs.read_io(os.getpid()) > 0
        assert procfs.read_own_io(os.getpid()).bytes > 0
        assert len(procfs.read_boot_id()) == 36
    finally:
        stop.set()
        thread.join()


def test_cpu_time_grows_with_use() -> None:
    before = read_stat("self")
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    after = read_stat("self")
    assert before is not None and after is not None
    assert 0.05 < after.cpu_s - before.cpu_s < 5


def test_a_stopped_process_and_a_zombie_show_their_state(start_script: StartScript) -> None:
    script = start_script(SLEEP)

    def state() -> str:
        stat = read_stat(script.pid)
        return stat.state if stat is not None else "?"

    os.kill(script.pid, signal.SIGSTOP)
    wait_until(lambda: state() == "T", 5, "the stop")
    os.kill(script.pid, signal.SIGKILL)
    wait_until(lambda: state() == "Z", 5, "the zombie")
    zombie = read_stat(script.pid)
    assert zombie is not None and zombie.is_dead
    assert not ProcessTable.read().is_alive(script.pid, script.start)
    assert read_threads(script.pid)[0].state == "Z"


def test_descendants_are_found_nearest_first(start_script: StartScript) -> None:
    script = start_script(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sh', '-c', 'sleep 60 & echo ready; wait'])\n"
        "time.sleep(60)\n"
    )

    def names() -> list[str]:
        table = ProcessTable.read()
        return [table.stats[pid].comm for pid in table.descendants(script.pid)]

    wait_until(lambda: names() == ["sh", "sleep"], 5, "shell and sleep")
    shell, sleep = descendants(script.pid)
    table = ProcessTable.read()
    assert table.descendants(script.pid, limit=1) == [shell]
    assert table.descendants(script.pid, without=shell) == []
    assert {shell, sleep} < set(table.descendants(os.getpid()))


def test_a_circle_of_parents_ends() -> None:
    stats = [parse_stat(STAT)._replace(pid=pid, ppid=ppid) for pid, ppid in ((2, 3), (3, 2))]
    assert ProcessTable(stats).descendants(2) == [3]


def test_a_marked_process_is_found_whoever_its_parent_is(start_script: StartScript) -> None:
    script = start_script(
        "import subprocess, time\n"
        "subprocess.Popen(['sh', '-c', '(sleep 60 &) ; echo ready'], start_new_session=True).wait()\n"
        "time.sleep(60)\n",
        env={"GUARDRUN_TOKEN": "mark-one"},
    )
    found = dict(processes_with_marker("mark-one"))
    assert found.pop(script.pid) == script.start
    assert len(found) == 1
    assert processes_with_marker("mark") == []
    assert end_processes(found.items()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_another_users_process_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "60"], user=65534, env={**os.environ, "GUARDRUN_TOKEN": "mark-two"})
    try:
        wait_until(lambda: procfs.read_cmdline(child.pid) == ["sleep", "60"], 5, "the exec")
        assert processes_with_marker("mark-two") == []
    finally:
        child.kill()
        child.wait()
