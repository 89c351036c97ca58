"""Whose native code a rank runs in: real libraries read by the real py-spy, and when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire.board import Board, Field
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.procfs import ThreadStat
from guardrun.supervisor.collect.ranks.boards import BLANK, BoardReader, open_boards
from guardrun.supervisor.collect.ranks.look import take_look
from guardrun.supervisor.collect.ranks.native_frames import (
    FEW,
    Asker,
    NativeFrames,
    Place,
    find_place,
    find_runner,
    library_family,
    parse_spot,
)
from guardrun.supervisor.collect.ranks.pauses import PAUSES, Pauses
from guardrun.supervisor.collect.ranks.stack_dumps import find_pyspy
from guardrun.supervisor.engine.model.looks import Frame, Library, NativeSpot, RankLook, ThreadLook
from guardrun.supervisor.engine.observation.rank_activity import RankActivity, judge
from tests.collect.conftest import StartScript
from tests.support.waiting import wait_until

LIBRARY = """
#include <time.h>

/* Has no name in a library without symbols, as nearly all of a driver. */
static __attribute__((noinline)) int until(const volatile int *flag)
{
    struct timespec now;
    for (volatile long n = 0; !*flag; n++)
        if (n % 100000 == 0)
            clock_gettime(CLOCK_MONOTONIC, &now);
    return *flag;
}

int cuStreamSynchronize(const volatile int *flag)
{
    return until(flag) - 1;
}
"""
SCRIPT = """
import ctypes, mmap, sys
kind, library, path = sys.argv[1:]
with open(path, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 4)
flag = ctypes.c_int.from_buffer(shared)
function = getattr(ctypes, kind)(library).cuStreamSynchronize
def item():
    function(ctypes.byref(flag))  # here
print("ready", flush=True)
item()
print("done", flush=True)
"""


@pytest.mark.real("py-spy")
@pytest.mark.real("cc")
def test_a_driver_is_told_from_a_library_of_the_users(
    start_script: StartScript, make_board: Callable[..., Board], clock: EngineClock, tmp_path: Path
) -> None:
    """One that has dropped the GIL, one that keeps it, and the same function in another library."""
    (tmp_path / "driver.c").write_text(LIBRARY)
    driver, own = tmp_path / "libcuda.so.1", tmp_path / "libmylib.so"
    subprocess.run(["cc", "-O1", "-s", "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    own.write_bytes(driver.read_bytes())
    flag = tmp_path / "flag"
    flag.write_bytes(bytes(4))
    calls = (("CDLL", driver), ("PyDLL", driver), ("CDLL", own))
    scripts = [start_script(SCRIPT, kind, str(path), str(flag), ends_asleep=False) for kind, path in calls]
    long_ago_ns = time.monotonic_ns() - 60 * 10**9
    for rank, script in enumerate(scripts):
        make_board(0, rank, script.pid, HEART_NS=long_ago_ns if rank == 1 else 0)
    boards = open_boards(tmp_path, 0, range(len(scripts)))
    before = [PAUSES.count(script.pid) for script in scripts]

    def look(may_pause: bool = True) -> list[RankLook]:
        ranks = [script.rank(rank) for rank, script in enumerate(scripts)]
        taken = take_look(
            0, ranks, boards=boards, clock=clock, sockets_dir=tmp_path, folder=None, may_pause=may_pause, samples=2
        )
        assert taken.missing == {}
        return taken.ranks

    try:
        first, _ = look(may_pause=False), look(may_pause=False)
        assert [rank.process.pauses for rank in first] == before, "a look for a person pauses nobody"
        assert [rank.process.pauses for rank in look()] == before, "nor does the first look at a place"
        wait_until(lambda: all(rank.process.native for rank in look()), 60, "native frames of all")
        again = look()
    finally:
        for board in boards.values():
            board.close()
    family = Library.CUDA, Library.CUDA, Library.OTHER
    spots = [NativeSpot(kind, "cuStreamSynchronize", path.name) for kind, (_, path) in zip(family, calls, strict=True)]
    assert [rank.process.native for rank in again] == spots
    assert [rank.process.pauses for rank in again] == [count + 2 for count in before], "once each"
    judged = [judge(*pair) for pair in zip(first, again, strict=True)]
    where = f"for its GPU in cuStreamSynchronize (libcuda.so.1), called from script0.py:{scripts[0].line_of('# here')}"
    assert [each.device_wait for each in judged] == [where, where.replace("script0", "script1"), ""]
    doing = [RankActivity.SPINNING, RankActivity.GIL_HELD, RankActivity.SPINNING]
    assert [each.doing for each in judged] == doing
    with flag.open("r+b") as file:
        file.write(b"\1")
    for script in scripts:
        assert script.process.communicate(timeout=60)[0] == b"done\n", "the pause has done it no harm"
        assert script.process.returncode == 0


LINGERING = """#!{python}
import os, signal, subprocess, sys, time
spy, go = {spy!r}, {go!r}
if "--native" not in sys.argv:
    os.execv(spy, [spy, *sys.argv[1:]])
def state():
    with open(f"/proc/{{sys.argv[-1]}}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
out, began = b"", time.monotonic()
def is_over():
    return os.path.exists(go) or time.monotonic() - began > 15
while not is_over():
    process = subprocess.Popen([spy, *sys.argv[1:]], stdout=subprocess.PIPE)
    while process.poll() is None and not is_over():
        if state() == "t":
            os.kill(process.pid, signal.SIGSTOP)
            while state() == "t" and not is_over():
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGCONT)
    out = process.communicate()[0]
sys.stdout.buffer.write(out)
"""
"""A py-spy that stops itself while it has paused a process for its native frames, until it may go on."""


@pytest.mark.real("py-spy")
def test_a_rank_that_is_paused_for_it_is_not_said_to_be_stopped(
    start_script: StartScript, clock: EngineClock, tmp_path: Path
) -> None:
    """Two looks meet one pause; without our count it is a debugger's."""
    script = start_script("print('ready', flush=True)\nwhile True: pass", ends_asleep=False)
    before = PAUSES.count(script.pid)
    go, program = tmp_path / "go", tmp_path / "lingering"
    program.write_text(LINGERING.format(python=sys.executable, spy=find_pyspy(), go=str(go)))
    program.chmod(0o755)

    def look() -> RankLook:
        taken = take_look(
            0,
            [script.rank()],
            boards={},
            clock=clock,
            sockets_dir=tmp_path,
            folder=None,
            may_pause=True,
            samples=2,
            pyspy=str(program),
        )
        return taken.ranks[0]

    try:
        look()
        look()
        first = wait_until(lambda: found if (found := look()).process.state == "t" else None, 30, "the pause")
        assert first is not None
        second = look()
        assert second.process.state == "t"
        assert judge(first, second).doing is RankActivity.CHURNING
        uncounted = [
            msgspec.structs.replace(each, process=msgspec.structs.replace(each.process, pauses=0))
            for each in (first, second)
        ]
        assert judge(*uncounted).doing is RankActivity.TRACED
    finally:
        go.touch()
    wait_until(lambda: PAUSES.count(script.pid) == before + 2, 30, "its end")
    assert look().process.state == "R"


# When a rank is asked ------------------------------------------------------------------------------------------------

STACK = (Frame("item", "/home/me/train.py", 41),)
NOBODY = 1 << 24
"""No process has such a number: nobody is paused."""


def rank(
    number: int = 0, *, line: int = 41, progress: int = 5, order: int = 0, board: BoardReader | None = None
) -> Asker:
    place = Place((progress, 0), (Frame("item", "/home/me/train.py", line),))
    return Asker(NOBODY + number, 1, NOBODY + number, place, (order, 0), board)


def answered(number: int = 0) -> None:
    wait_until(lambda: PAUSES.count(NOBODY + number) % 2 == 0, 10, "the answer")


@pytest.fixture
def frames() -> Iterator[NativeFrames]:
    yield NativeFrames()
    for number in range(2 * FEW):
        answered(number)


def test_it_is_asked_in_the_second_look_at_a_place_and_once(frames: NativeFrames) -> None:
    before = PAUSES.count(NOBODY)
    assert frames.look([rank()], 100.0) == []
    assert frames.look([rank()], 108.0) == [NOBODY]
    answered()
    assert [frames.look([rank()], 116.0 + n) for n in range(3)] == [[], [], []]
    assert PAUSES.count(NOBODY) == before + 2


@pytest.mark.parametrize("change", [{"line": 42}, {"progress": 6}], ids=["another line", "something advanced"])
def test_who_gets_on_is_not_asked(frames: NativeFrames, change: dict[str, int]) -> None:
    assert [frames.look([rank(**(change if n % 2 else {}))], 100.0 + 8 * n) for n in range(9)] == [[]] * 9  # type: ignore[arg-type]


def test_each_further_place_must_last_for_twice_as_long(frames: NativeFrames) -> None:
    """A rank whose evaluations take long in one call, one after the other, is hardly ever paused."""
    asked = []
    for stall in range(6):
        began = 1000.0 * stall
        for second in range(0, 600, 5):
            if frames.look([rank(progress=stall)], began + second):
                asked.append(second)
                answered()
    assert asked == [5, 20, 40, 80, 160, 300]


def test_a_few_are_asked_at_a_time_and_those_that_are_behind_first(frames: NativeFrames) -> None:
    ranks = [rank(n, order=10 - n // 2) for n in range(2 * FEW)]
    behind, ahead = range(2 * FEW - 1, FEW - 1, -1), range(FEW)
    PAUSES.begin(NOBODY - 1)
    with PAUSES.turn(NOBODY - 1):
        assert frames.look(ranks, 100.0) == []
        assert sorted(frames.look(ranks, 108.0)) == [NOBODY + n for n in sorted(behind)]
        assert frames.look(ranks, 116.0) == [], "there is no room"
    for number in behind:
        answered(number)
    wait_until(lambda: sorted(frames.look(ranks, 124.0)) == [NOBODY + n for n in ahead], 10, "the others' turn")


def test_nobody_is_paused_while_a_graph_is_captured(
    frames: NativeFrames, make_board: Callable[..., Board], tmp_path: Path
) -> None:
    board = make_board(0, 0, NOBODY, CAPTURES=1)
    readers = open_boards(tmp_path, 0, range(1))
    try:
        assert [frames.look([rank(board=readers[0])], 100.0 + n) for n in range(3)] == [[]] * 3
        board.words[Field.CAPTURES] = 0
        assert frames.look([rank(board=readers[0])], 104.0) == [NOBODY]
        answered()
    finally:
        readers[0].close()


def test_pauses_that_overlap_are_counted_as_one() -> None:
    pauses = Pauses()
    assert pauses.count_since(7, pauses.count(7)) == 0
    pauses.begin(7)
    pauses.begin(7)
    assert (pauses.count(7), pauses.count_since(7, 0)) == (1, 1)
    with pauses.turn(7):
        pass
    assert pauses.count(7) == 1
    with pauses.turn(7):
        pass
    assert (pauses.count(7), pauses.count(8)) == (2, 0)
    assert pauses.count_since(7, 0) % 2, "one that began and ended while it was looked at"
    assert pauses.count_since(7, 2) == 2


# What is read --------------------------------------------------------------------------------------------------------


def python(name: str = "item", line: int = 41) -> dict[str, object]:
    return {"name": name, "filename": "/home/me/train.py", "module": None, "line": line}


def native(name: str, library: str) -> dict[str, object]:
    return {"name": name, "filename": library, "module": f"/usr/lib/{library}", "line": 0}


GENERATED = {"name": "0x7f00", "filename": "?", "module": None, "line": 0}
INSIDE = [native("0x7f01", "libcuda.so.580.65.06"), native("cuStreamSynchronize", "libcuda.so.580.65.06")]


def spot(*frames: dict[str, object], tid: int = 7, main: list[dict[str, object]] | None = None) -> NativeSpot | None:
    threads = [{"os_thread_id": tid, "frames": list(frames)}]
    if main is not None:
        threads.append({"os_thread_id": 7, "frames": main})
    return parse_spot(json.dumps(threads), 7, tid, Place((5, 0), STACK))


SYNC = NativeSpot(Library.CUDA, "cuStreamSynchronize", "libcuda.so.580.65.06")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([*INSIDE, python()], SYNC),
        ([native("clock_gettime", "libc.so.6"), *INSIDE, native("ffi_call", "libffi.so.8"), python()], SYNC),
        ([*INSIDE, native("cudaStreamSynchronize", "libcudart.so.12"), python()], SYNC),
        ([*INSIDE, native("solve", "libmylib.so"), python()], SYNC),
        ([native("solve", "libmylib.so"), *INSIDE, python()], NativeSpot(Library.OTHER, "solve", "libmylib.so")),
        ([INSIDE[0], python()], NativeSpot(Library.CUDA, "", "libcuda.so.580.65.06")),
        ([native("ncclGroupEnd", "libnccl.so.2"), python()], NativeSpot(Library.NCCL, "ncclGroupEnd", "libnccl.so.2")),
        ([GENERATED, *INSIDE, python()], NativeSpot(Library.OTHER, "", "")),
        ([native("sched_yield", "libc.so.6"), python()], None),
        ([python()], None),
        ([*INSIDE, python(line=42)], None),
        ([*INSIDE], None),
        ([], None),
    ],
)
def test_the_innermost_library_counts_and_what_was_called_of_it(
    frames: list[dict[str, object]], expected: NativeSpot | None
) -> None:
    assert spot(*frames) == expected


def test_a_thread_of_autograd_s_engine_counts_while_the_main_thread_is_where_it_was() -> None:
    waits = [native("pthread_cond_wait", "libc.so.6"), native("wait", "libtorch_cpu.so")]
    assert spot(*INSIDE, tid=9, main=[*waits, python()]) == SYNC
    assert spot(*INSIDE, tid=9, main=[*waits, python(line=50)]) is None
    assert spot(*INSIDE, tid=9) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("libcuda.so.1", Library.CUDA),
        ("libcudart-d0da41ae.so.11.0", Library.CUDA),
        ("librccl.so.1", Library.NCCL),
        ("libamdhip64.so.6", Library.HIP),
        ("libhsa-runtime64.so.1", Library.HIP),
        ("libze_intel_gpu.so.1", Library.LEVEL_ZERO),
        ("libcuda_ops.so", Library.OTHER),
        ("libcudadebugger.so.1", Library.OTHER),
        ("libtorch_cuda.so", Library.OTHER),
        ("", Library.OTHER),
    ],
)
def test_libraries_are_known_by_their_files(name: str, family: Library) -> None:
    assert library_family(name) is family


BACKWARD = [Frame("_engine_run_backward", "/x/site-packages/torch/autograd/graph.py", 841), *STACK]
BARRIER = [Frame("barrier", "/x/site-packages/torch/distributed/distributed_c10d.py", 4000), *STACK]


def runner(
    *threads: tuple[int, str, str], stack: list[Frame] | None = None, gil: int = 0, heart_s_ago: float | None = None
) -> int:
    """threads: number, name, state."""
    words = list(BLANK)
    if heart_s_ago is not None:
        words[Field.HEART_NS] = time.monotonic_ns() - int(1e9 * heart_s_ago)
    place = find_place(words, [ThreadLook(tid=7, is_main=True, frames=list(STACK) if stack is None else stack)])
    if place is None:
        return -1
    stats = [ThreadStat(tid, name, state, float(tid), 0) for tid, name, state in threads]
    return find_runner(7, place, words, stats, gil)


def test_the_thread_that_runs_is_asked_for() -> None:
    main, helper = (7, "python", "R"), (8, "helper", "R")
    assert runner(main, helper) == 7
    assert runner((7, "python", "S"), helper) == 0
    assert runner(main, stack=BARRIER) == -1, "it waits for other ranks"
    assert runner(main, stack=[]) == -1
    engine = (9, "pt_autograd_0", "R")
    assert runner((7, "python", "S"), engine, stack=BACKWARD) == 9
    assert runner((7, "python", "S"), engine) == 0
    assert runner((7, "python", "S"), (9, "pt_autograd_0", "S"), stack=BACKWARD) == 0


@pytest.mark.parametrize(
    ("gil", "heart_s_ago", "expected"),
    [(7, 0.5, 0), (7, 60.0, 7), (7, None, 7), (8, 0.5, 7), (0, 0.5, 7)],
    ids=["runs Python", "keeps the GIL", "has no hooks", "another has the GIL", "nobody has it"],
)
def test_who_runs_python_is_not_asked(gil: int, heart_s_ago: float | None, expected: int) -> None:
    assert runner((7, "python", "R"), gil=gil, heart_s_ago=heart_s_ago) == expected
