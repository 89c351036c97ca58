"""A rank's stacks where py-spy gives none: written by its hooks, or, while the GIL is held, by faulthandler."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from guardrun.hooks.wire.board import Field, board_name
from guardrun.hooks.wire.messages import Beat
from guardrun.supervisor.collect.host.procfs import ThreadStat, read_stat
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.collect.ranks.stacks import Fallback, StackDump, dump_stacks, is_gil_held
from guardrun.supervisor.engine.model.looks import Frame
from tests.hooks.bed import Bed
from tests.support.waiting import wait_until

WAITS = """
import time
def inner():
    time.sleep(600)  # here
inner()
"""
HOLDS = """
import ctypes
def hold():
    while True: ctypes.PyDLL(None).sleep(600)  # any signal ends one
hold()
"""
COMPUTES = """
import re
def search(): re.match("(a+)+$", "a" * 60 + "b")
search()
"""
BUSY = """
import os, threading
class One:
    def __init__(self, n): self.n = n
    def go(self): return (lambda y: y + self.n)(1)
def descend(n): return One(n).go() if n == 0 else descend(n - 1)
def work():
    n = 0
    while True:
        descend(n % 40)
        [One(x).go() for x in range(20)]
        exec(f"def f(a): return a + {n}\\nf(1)")
        n += 1
def wait(): os.read(os.pipe()[0], 1)
for _ in range(2): threading.Thread(target=work, daemon=True).start()
wait()
"""


class OwnStacks(NamedTuple):
    """A rank that has no py-spy to be looked at by."""

    process: subprocess.Popen[str]
    path: Path
    fallback: Fallback

    def dump(self, pyspy: str | None = "") -> StackDump:
        stat = read_stat(self.process.pid)
        assert stat is not None
        return dump_stacks(stat.pid, stat.start, fallback=self.fallback, pyspy=pyspy)

    def dump_in(self, function: str, pyspy: str | None = "") -> StackDump:
        """Once it is there."""

        def dump() -> StackDump | None:
            dump = self.dump(pyspy)
            return dump if any(one.function == function for thread in dump.threads for one in thread.frames) else None

        found = wait_until(dump, 30, function)
        assert found is not None
        return found


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Callable[..., OwnStacks]]:
    with Bed() as bed, closing(BoardReader(str(bed.sockets / board_name(0, 0)))) as board:

        def start(code: str, name: str = "train.py") -> OwnStacks:
            path = tmp_path / name
            path.write_text(code)
            process = bed.start([str(path)])
            signum = bed.wait_until(Field.DUMP_SIGNAL)
            bed.wait_for(Beat)
            return OwnStacks(process, path, Fallback(signum, bed.sockets / "stacks-0-0", board))

        yield start


StartRank = Callable[..., OwnStacks]
BY_HOOKS = ("the rank's hooks", "py-spy is not installed: stacks by the rank's hooks")


def test_a_ranks_hooks_write_its_stacks(start_rank: StartRank) -> None:
    rank = start_rank(WAITS)
    for dump in (rank.dump_in("inner"), rank.dump_in("inner")):
        assert (dump.source, dump.trouble) == BY_HOOKS
        (thread,) = dump.threads
        assert thread.is_main and thread.tid == rank.process.pid
        assert thread.frames[0] == Frame("inner", str(rank.path), 4)


def test_they_help_where_py_spy_drops_a_path_that_is_not_utf8(start_rank: StartRank) -> None:
    rank = start_rank(WAITS, name="caf\udce9.py")
    dump = rank.dump_in("inner", pyspy=None)
    assert dump.source == BY_HOOKS[0]
    frame = dump.threads[0].frames[0]
    assert (frame.function, frame.line) == ("inner", 4)
    frame.file.encode()


def test_they_help_where_py_spy_drops_some_frames(start_rank: StartRank) -> None:
    sleep = "s = __import__('sched').scheduler(time.monotonic, time.sleep); s.enter(600, 1, print); s.run()"
    rank = start_rank(WAITS.replace("time.sleep(600)", sleep), name="caf\udce9.py")
    dump = rank.dump_in("inner", pyspy=None)
    assert dump.source == BY_HOOKS[0]
    assert [frame.function for frame in dump.threads[0].frames[-2:]] == ["inner", "<module>"]


def test_threads_that_run_meanwhile_come_to_no_harm(start_rank: StartRank) -> None:
    """faulthandler, asked by a signal, ends this process within some hundred times."""
    rank = start_rank(BUSY)
    for _ in range(5):
        dump = rank.dump_in("wait")
        assert dump.source == BY_HOOKS[0] and dump.threads[0].frames[0].function == "wait"
        assert sum(any(frame.function == "work" for frame in thread.frames) for thread in dump.threads) == 2
    assert rank.process.poll() is None


@pytest.mark.parametrize(("code", "function"), [(HOLDS, "hold"), (COMPUTES, "search")], ids=["asleep", "computes"])
def test_while_the_gil_is_held_faulthandler_does(
    start_rank: StartRank, tmp_path: Path, code: str, function: str
) -> None:
    go = tmp_path / "go"
    rank = start_rank(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n{code}")
    go.touch()
    dump = wait_until(lambda: (dump := rank.dump()).source == "faulthandler" and dump, 60, "the GIL to be held")
    assert dump and dump.trouble == "py-spy is not installed: stacks by faulthandler"
    assert [frame.function for frame in dump.threads[0].frames][-2:] == [function, "<module>"]
    assert rank.process.poll() is None


HEART = 8


@pytest.mark.parametrize(
    ("main", "heart", "is_held"),
    [
        (("S", 0.0), ("S", 300), True),
        (("R", 1.5), ("S", 300), True),
        (("R", 0.02), ("S", 300), False),
        (("S", 0.0), ("S", 0), False),
        (("R", 1.5), ("S", 0), False),
        (("R", 0.0), ("R", 300), False),
    ],
    ids=[
        "sleeps with it",
        "computes natively",
        "may be anywhere: it got no CPU",
        "the heart waits for something else",
        "while others run",
        "the heart got no CPU either",
    ],
)
def test_what_says_that_nothing_of_python_runs(main: tuple[str, float], heart: tuple[str, int], is_held: bool) -> None:
    before = {7: ThreadStat(7, "python", "R", 1.0, 5), HEART: ThreadStat(HEART, "python", "S", 0.1, 10)}
    now = [
        ThreadStat(7, "python", main[0], 1.0 + main[1], 5),
        ThreadStat(HEART, "python", heart[0], 0.1, 10 + heart[1]),
    ]
    assert is_gil_held(before, now, HEART) == is_held


def test_a_stopped_rank_is_not_asked(start_rank: StartRank) -> None:
    rank = start_rank(WAITS)
    rank.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(rank.process.pid)) is not None and stat.state == "T", 10, "state T")
    assert rank.dump().trouble == "py-spy is not installed; it can't write its stacks in state T"
    assert rank.fallback.path.read_text() == ""


def test_whose_board_cannot_be_read_is_not_asked(start_rank: StartRank) -> None:
    rank = start_rank(WAITS)
    nowhere = BoardReader("/nowhere")
    dump = rank._replace(fallback=rank.fallback._replace(board=nowhere)).dump()
    assert dump.trouble == "py-spy is not installed; the rank's hooks can't be asked: its board can't be read"
