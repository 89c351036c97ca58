"""Descriptors of a real process: how many, of how many it may have, and what the newest are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from guardrun.hooks.wire.board import Board, Field
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.host.procfs import parse_files_limit
from guardrun.supervisor.collect.ranks.open_files import (
    KINDS,
    MAX_NAME,
    count_descriptors,
    count_one_by_one,
    read_open_files,
    summarize,
)
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model.events import OpenFiles, RankReport
from tests.collect.conftest import StandingClock, StartScript

OPENS = """
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [open(__file__) for _ in range(10)]
if sys.argv[1] == "many":
    kept += [open(os.path.join(sys.argv[3], str(n)), "w") for n in range(90)]
    kept += [socket.socket() for _ in range(60)]
    kept += [open(__file__) for _ in range(20)]
    kept += [os.pipe() for _ in range(3)]
print('ready', flush=True)
time.sleep(60)
"""
FEW, MANY = 10, 186
OWN = 3


def test_a_process_with_few_of_its_limit(start_script: StartScript) -> None:
    script = start_script(OPENS, "few", "1024")
    files = read_open_files(script.pid)
    assert files is not None and files.limit == 1024
    assert FEW + OWN <= files.count < FEW + OWN + 5
    assert not files.are_many and files.newest == []


def test_a_process_with_many_of_its_limit(start_script: StartScript, tmp_path: Path) -> None:
    script = start_script(OPENS, "many", "300", str(tmp_path))
    files = read_open_files(script.pid)
    assert files is not None and files.limit == 300
    assert MANY + OWN <= files.count < MANY + OWN + 5
    assert files.are_many
    (folder, in_folder), (sockets, count), (path, times) = files.newest
    assert (folder, in_folder) == (f"files in {tmp_path}", 90)
    assert (sockets, count) == ("sockets", 60)
    assert os.path.isabs(path) and times == 30, "one file, opened again and again"


def test_counting_one_by_one_comes_to_the_same_and_has_an_end(start_script: StartScript) -> None:
    script = start_script(OPENS, "few", "1024")
    assert count_one_by_one(script.pid) == count_descriptors(script.pid)
    assert count_one_by_one(script.pid, most=5) is None


def test_a_process_that_is_gone_or_dead_has_none(start_script: StartScript) -> None:
    script = start_script(OPENS, "few", "1024")
    script.process.kill()
    os.waitid(os.P_PID, script.pid, os.WEXITED | os.WNOWAIT)
    assert read_open_files(script.pid) is None, "a zombie"
    script.process.wait()
    assert read_open_files(script.pid) is None
    assert read_open_files(2**22 + 1) is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("Max open files            1024                 524288               files     \n", 1024),
        (
            "Max cpu time  1 2 seconds\nMax open files            unlimited            unlimited            files\n",
            None,
        ),
        ("", None),
    ],
)
def test_limits(text: str, limit: int | None) -> None:
    assert parse_files_limit(text) == limit


def test_what_descriptors_are() -> None:
    targets = [
        "socket:[1]",
        "socket:[2]",
        "anon_inode:[eventfd]",
        "anon_inode:inotify",
        "pipe:[7]",
        "pipe:[7]",
        "net:[1]",
    ]
    assert summarize(targets)[:2] == [("sockets", 2), ("pipes", 2)]
    assert summarize(targets[2:4]) == [("eventfd", 1), ("inotify", 1)]
    assert summarize([f"/data/{n}" for n in range(9)] + ["/a/b"]) == [("files in /data", 9), ("files in /a", 1)]
    assert summarize(["/a/b", "/a/b (deleted)", "/a/c"]) == [("/a/b", 2), ("files in /a", 1)]
    assert len(summarize([f"{name}:[1]" for name in "abcde"])) == KINDS
    assert summarize([]) == []


def test_names_can_be_written_down() -> None:
    ((name, _),) = summarize(["/" + "x" * 200 + "/\udcff"] * 2)
    assert len(name) <= MAX_NAME + len("\\udcff") and name.endswith("x/\\udcff")
    msgspec.json.encode(OpenFiles(1, 1, [(name, 2)]))


@pytest.fixture
def sampler(tmp_path: Path, clock: EngineClock) -> Iterator[Sampler]:
    sampler = Sampler(clock, tmp_path, files_window_s=4.0)
    yield sampler
    sampler.close()


def counted(reports: list[RankReport]) -> list[int]:
    return [report.global_rank for report in reports if report.open_files is not None]


def test_ranks_are_counted_now_and_then_in_reports_that_are_made_anyway(
    start_script: StartScript, make_board: Callable[..., Board], sampler: Sampler, standing_clock: StandingClock
) -> None:
    scripts = [start_script(OPENS, "few", "1024") for _ in range(2)]
    boards = [make_board(0, rank, script.pid) for rank, script in enumerate(scripts)]
    sampler.attempt_started(0, [script.rank(rank) for rank, script in enumerate(scripts)])

    def sample() -> list[int]:
        for board in boards:
            board.words[Field.STEP] += 1
        return counted(sampler.sample())

    assert sample() == [0, 1]
    standing_clock.now_s += 0.5
    assert sample() == [], "too soon"
    standing_clock.now_s += 0.51
    assert sampler.sample() == [], "nothing else has changed"
    assert sample() == [0, 1]
    scripts[0].process.kill()
    os.waitid(os.P_PID, scripts[0].pid, os.WEXITED | os.WNOWAIT)
    standing_clock.now_s += 1.01
    assert sample() == [1], "the other has ended"


def test_where_counting_takes_long_ranks_take_turns(
    start_script: StartScript, make_board: Callable[..., Board], sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardrun.supervisor.collect.ranks.sampler.TURNS_BUDGET_S", 0.0)
    sampler._every_s["open_files"] = 1000.0
    scripts = [start_script(OPENS, "few", "1024") for _ in range(3)]
    boards = [make_board(0, rank, script.pid) for rank, script in enumerate(scripts)]
    sampler.attempt_started(0, [script.rank(rank) for rank, script in enumerate(scripts)])
    turns = []
    for _ in range(4):
        for board in boards:
            board.words[Field.STEP] += 1
        turns.append(counted(sampler.sample()))
    assert turns == [[0], [1], [2], []]


def test_reports_from_before_have_none() -> None:
    before = msgspec.json.decode(b'{"global_rank": 1, "step": 7}', type=RankReport)
    assert before.open_files is None and b"open_files" not in msgspec.json.encode(before)
    assert msgspec.json.decode(b"[12]", type=OpenFiles) == OpenFiles(12)
