"""torch's worker server in a rank: nothing of it is seen, and where it might do harm there is none."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from guardrun.hooks.patches import flight_recorder
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.calls_page import calls_name
from guardrun.supervisor.collect.collectives import recorder_reader
from guardrun.supervisor.collect.collectives.calls_page import read_calls
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReader
from guardrun.supervisor.collect.ranks.boards import open_boards
from tests.hooks.bed import Bed, finish, run_plain

ALONE = str(Path(__file__).parents[1] / "ranks" / "alone.py")
WAIT = """
import time
from guardrun.hooks.rank import rank
from guardrun.hooks.wire.board import Field
while rank.active.words[Field.SERVER_GIVEN] != rank.active.words[Field.SERVER_ASKED]:
    time.sleep(0.01)
"""
"""Until the hooks have answered whoever asks for the server."""


def ask(bed: Bed) -> None:
    """Ask for the server of a rank that is about to start."""
    bed.make_board()
    bed.board().words[Field.SERVER_ASKED] = 1


def test_a_rank_s_output_and_end_are_as_without_it(bed: Bed, tmp_path: Path) -> None:
    plain = run_plain([ALONE, str(tmp_path / "plain"), "3"], dict(os.environ))
    ask(bed)
    done = finish(bed.start([ALONE, str(tmp_path / "seen"), "3"]))
    assert plain.stdout == "trained\n"
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr) != (0, "", "")
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["is a socket"]
    assert seen["child"] == 0
    assert json.loads((tmp_path / "seen-child").read_text()) == {"is a socket": False}
    page = read_calls(str(bed.sockets / calls_name(0, 0)))
    assert (page.recorder_fd, page.recorder_trouble) == (seen["fd"], "")


def test_its_threads_take_no_signal(bed: Bed, tmp_path: Path) -> None:
    ask(bed)
    assert finish(bed.start([ALONE, str(tmp_path / "seen")])).returncode == 0
    threads = json.loads((tmp_path / "seen").read_text())["threads"]
    assert len(threads) == max(8, (os.cpu_count() or 1) - 1) + 1, "as hooks/patches/flight_recorder.py reckons"
    for thread in threads:
        blocked = int(thread["SigBlk"], 16)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM):
            assert blocked >> (each - 1) & 1
        assert not blocked >> (signal.SIGSEGV - 1) & 1


def test_nobody_asks_and_there_is_none(bed: Bed, tmp_path: Path) -> None:
    code = f"""
import os, time, torch, torch.distributed as dist
from guardrun.hooks.rank import rank
from guardrun.hooks.wire.board import Field
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
beat = rank.active.words[Field.HEART_NS]
while rank.active.words[Field.HEART_NS] == beat:
    time.sleep(0.01)
print(sum("pt_workerserver" in open(f"/proc/self/task/{{tid}}/comm").read() for tid in os.listdir("/proc/self/task")))
"""
    done = bed.run(code)
    assert (done.stdout, done.stderr) == ("0\n", "")
    page = read_calls(str(bed.sockets / calls_name(0, 0)))
    assert (page.recorder_fd, page.recorder_trouble) == (-1, "")


@pytest.mark.parametrize(
    ("first", "more", "trouble"),
    [
        ("", {"TORCH_FR_BUFFER_SIZE": "0"}, "the flight recorder is off"),
        ("", {"TORCH_FR_BUFFER_SIZE": "100000"}, "too large"),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (2**42, 2**42))", {}, "too little room"),
        ("import torch; del torch._C._distributed_c10d._WorkerServer", {}, "no worker server"),
    ],
    ids=["off", "huge", "no room", "old torch"],
)
def test_where_there_is_none_the_page_says_why(
    bed: Bed, tmp_path: Path, first: str, more: dict[str, str], trouble: str
) -> None:
    code = f"""
{first}
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(2))
{WAIT}
"""
    ask(bed)
    done = bed.run(code, **more)
    assert (done.returncode, done.stderr) == (0, "")
    page = read_calls(str(bed.sockets / calls_name(0, 0)))
    assert page.recorder_fd == -1
    assert trouble in page.recorder_trouble
    assert [call.op for call in page.calls] == ["all_reduce"]
    assert not (bed.sockets / "fr-0-0").exists()


def test_a_group_s_own_timeout_is_on_the_page_and_no_default_that_is_passed_on(bed: Bed, tmp_path: Path) -> None:
    """Frameworks pass torch's defaults on: that is nobody's word. In a line of the script's own it is."""
    code = f"""
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(hours=5), init_method="file://{tmp_path}/store", rank=0, world_size=1)
dist.new_group([0], timedelta(seconds=77), group_desc="by place")
for file in ("/x/site-packages/accelerate/state.py", "/x/train.py"):
    exec(compile("dist.new_group([0], timeout=timedelta(minutes=30), group_desc=file)", file, "exec"))
dist.new_group([0], group_desc="none")
"""
    done = bed.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    page = read_calls(str(bed.sockets / calls_name(0, 0)))
    assert {group.desc: group.timeout_s for group in page.groups} == {
        "default_pg": 18_000.0,
        "by place": 77.0,
        "/x/site-packages/accelerate/state.py": 0.0,
        "/x/train.py": 1800.0,
        "none": 0.0,
    }


def test_torch_s_log_level_is_as_before(bed: Bed, tmp_path: Path) -> None:
    code = f"""
import ctypes, os, signal, torch, torch.distributed as dist
level = ctypes.c_int.in_dll(ctypes.CDLL(os.path.dirname(torch.__file__) + "/lib/libc10.so"), "FLAGS_caffe2_log_level")
before = level.value, signal.pthread_sigmask(signal.SIG_BLOCK, [])
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
{WAIT}
print(before == (level.value, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""
    ask(bed)
    assert bed.run(code).stdout == "True\n"
    assert read_calls(str(bed.sockets / calls_name(0, 0))).recorder_fd >= 0


def test_it_answers_while_the_gil_is_held(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_reader, "FETCH_S", 60.0)
    code = f"""
import ctypes, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(2))
{WAIT}
print("ready", flush=True)
ctypes.PyDLL(None).sleep(200)
"""
    ask(bed)
    rank = bed.start(["-c", code])
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"
    page = read_calls(str(bed.sockets / calls_name(0, 0)))
    board = open_boards(bed.sockets, 0, [0])[0]
    trace = RecorderReader().read(rank.pid, board, page, str(bed.sockets / "fr-0-0"), 60.0).trace
    board.close()
    assert trace is not None
    assert [(entry.op, entry.sizes, entry.is_done) for entry in trace.entries] == [("all_reduce", [[2]], True)]


class Page:
    """What a calls page was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def set_pipe(self, pipe: str, dump: str) -> None:
        self.told.append((pipe, dump))

    def forbid_entries(self, trouble: str) -> None:
        self.told.append((trouble,))


DUMP = {"TORCH_FR_DUMP_TEMP_FILE": "/x/rank-"}
PIPE = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/y/pipe-"}


@pytest.mark.parametrize(
    ("environment", "torch", "is_made"),
    [
        (DUMP, (True, "too little room"), True),
        (DUMP, (True, ""), False),
        (DUMP, (False, "too little room"), False),
        (DUMP | PIPE, (True, "too little room"), False),
        ({}, (True, "too little room"), False),
        (DUMP | {"TORCH_FR_BUFFER_SIZE": "0"}, (True, "too little room"), False),
    ],
    ids=["needed", "a server can be had", "no NCCL", "the user's own", "no place for dumps", "no recorder"],
)
def test_torch_s_pipe_is_made_where_it_is_needed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    torch: tuple[bool, str],
    is_made: bool,
) -> None:
    """torch: whether it has NCCL, and why there can be no server."""
    has_nccl, obstacle = torch
    for name in (*flight_recorder.SIZE_VARIABLES, *flight_recorder.DUMP_VARIABLES, flight_recorder.PIPE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    monkeypatch.setattr(flight_recorder, "_has_prepared", False)
    monkeypatch.setattr(flight_recorder, "find_obstacle", lambda: obstacle)
    rank = SimpleNamespace(sockets=str(tmp_path), attempt=2, global_rank=5, fail=pytest.fail)
    module, page = SimpleNamespace(_NCCL_AVAILABLE=has_nccl), Page()
    flight_recorder.prepare(rank, page, module)  # type: ignore[arg-type]
    stem = f"{tmp_path}/pipe-2-5-"
    assert page.told == ([(stem, "/x/rank-")] if is_made else [])
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True] * is_made
    assert dict(os.environ) == before | ({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem} if is_made else {})
    monkeypatch.delenv(flight_recorder.PIPE_VARIABLE, raising=False)


@pytest.mark.parametrize(("value", "is_told"), [("1", True), ("True", True), ("0", False), ("", False)])
def test_nobody_asks_for_entries_where_torch_has_no_watchdog(
    monkeypatch: pytest.MonkeyPatch, value: str, is_told: bool
) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", value)
    monkeypatch.setattr(flight_recorder, "_has_prepared", True)
    page = Page()
    flight_recorder.prepare(SimpleNamespace(fail=pytest.fail), page, None)  # type: ignore[arg-type]
    assert page.told == [("torch waits for NCCL by itself (TORCH_NCCL_BLOCKING_WAIT)",)] * is_told


def test_room_for_threads_is_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flight_recorder.has_room(0)
    monkeypatch.setattr(flight_recorder, "_pid_limits", lambda: [("/sys/fs/cgroup/none", 100)])
    assert flight_recorder.has_room(100)
    assert not flight_recorder.has_room(101)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (20, 20) if what == resource.RLIMIT_NPROC else (-1, -1))
    assert not flight_recorder.has_room(20)
