"""Requests are taken from the board one at a time, answered by file, and leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from guardrun.hooks.examine import examiner as module
from guardrun.hooks.examine.examiner import Examiner
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    answer_name,
    read_whole,
    request_name,
    write_whole,
)
from tests.hooks.bed import Bed, finish

SECOND = 1_000_000_000


class Counting:
    """Answers with its third beat, or as the request says."""

    made: ClassVar[list[Counting]] = []

    def __init__(self, rank: Rank, arguments: dict[str, Any]) -> None:
        if arguments.get("refuse"):
            raise ValueError("not like this")
        self.ends_ns = 40 * SECOND
        self.beats = self.ends = 0
        self._fails = bool(arguments.get("fails"))
        self.made.append(self)

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        self.beats += 1
        if self._fails:
            raise RuntimeError("broken")
        return {"beats": self.beats} if self.beats == 3 else None

    def end(self) -> None:
        self.ends += 1


class Asked:
    """A rank in this process, and somebody who asks it."""

    def __init__(self, rank: Rank, folder: Path) -> None:
        rank.sockets = str(folder)
        self.rank, self.folder, self.examiner = rank, folder, Examiner(rank)

    def ask(self, number: int, what: object = "count", **arguments: object) -> None:
        content = {"number": number, "what": what, "arguments": arguments}
        write_whole(str(self.folder / request_name(0, 0)), content)
        self.rank.words[Field.EXAMINE_ASKED] = number

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.examiner.on_beat(SECOND)

    def answer(self, number: int) -> dict[str, Any]:
        return read_whole(str(self.folder / answer_name(0, 0)), number, MAX_ANSWER_BYTES)

    @property
    def taken(self) -> tuple[int, int]:
        return self.rank.words[Field.EXAMINE_TAKEN], self.rank.words[Field.EXAMINE_GIVEN]


@pytest.fixture
def asked(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setitem(module.KINDS, "count", Counting)
    return Asked(rank, tmp_path)


def test_a_request_is_taken_goes_on_and_is_answered_once(asked: Asked) -> None:
    asked.beat()
    assert asked.taken == (0, 0) and Counting.made == []
    asked.ask(1)
    asked.beat()
    assert asked.taken == (1, 0) and asked.rank.examination is not None
    asked.beat(2)
    assert asked.taken == (1, 1) and asked.answer(1)["told"] == {"beats": 3}
    (examination,) = Counting.made
    assert asked.rank.examination is None and examination.ends == 1
    asked.beat(2)
    assert (examination.beats, len(Counting.made)) == (3, 1)
    asked.ask(2)
    asked.beat(3)
    assert asked.taken == (2, 2) and asked.answer(2)["told"] == {"beats": 3}


def test_one_at_a_time(asked: Asked) -> None:
    asked.ask(1)
    asked.beat()
    asked.ask(2)
    asked.beat()
    assert asked.answer(2)["error"] == "it is busy with an earlier request (count), for 39 s more"
    asked.beat()
    assert asked.taken == (2, 2), "nobody is told of an older one"
    assert "error" in asked.answer(2) and len(Counting.made) == 1, "nor is the answer to the later one lost"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"refuse": True}, "not like this"),
        ({"fails": True}, "RuntimeError: broken"),
    ],
)
def test_what_cannot_be_done_is_said(asked: Asked, arguments: dict[str, Any], error: str) -> None:
    asked.ask(1, **arguments)
    asked.beat()
    assert asked.answer(1)["error"] == error
    assert asked.rank.examination is None and all(made.ends == 1 for made in Counting.made)
    asked.ask(2)
    asked.beat(3)
    assert asked.answer(2)["told"] == {"beats": 3}


@pytest.mark.parametrize("what", ["divination", None, 3, ["count"]])
def test_what_nobody_knows_is_said(asked: Asked, what: object) -> None:
    asked.ask(1, what)
    asked.beat()
    assert "its hooks know no request" in asked.answer(1)["error"] and "allocations" in asked.answer(1)["error"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"number": 2}', "[" * 100_000, " " * (MAX_REQUEST_BYTES + 1)])
def test_what_is_no_request_or_was_withdrawn_starts_nothing(asked: Asked, content: str) -> None:
    (asked.folder / request_name(0, 0)).write_text(content)
    asked.rank.words[Field.EXAMINE_ASKED] = 1
    asked.beat(2)
    (asked.folder / request_name(0, 0)).unlink()
    asked.rank.words[Field.EXAMINE_ASKED] = 2
    asked.beat(2)
    assert asked.taken == (2, 0) and Counting.made == [] and asked.rank.examination is None
    asked.ask(3)
    asked.beat(3)
    assert asked.taken == (3, 3)


def test_the_end_of_the_interpreter_ends_it(asked: Asked) -> None:
    asked.ask(1)
    asked.beat()
    asked.examiner.stop()
    asked.examiner.stop()
    assert Counting.made[0].ends == 1 and asked.rank.examination is None


def test_a_child_has_no_part_in_it(asked: Asked) -> None:
    asked.ask(1)
    asked.beat()
    asked.rank.become_child()
    assert Counting.made[0].ends == 1 and asked.rank.examination is None


def test_files_are_whole_and_of_their_number(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    write_whole(str(path), {"number": 3, "told": {"a": "\udc80"}})
    assert path.stat().st_mode & 0o777 == 0o600 and [one.name for one in tmp_path.iterdir()] == ["answer"]
    assert read_whole(str(path), 3, 1000)["told"] == {"a": "\udc80"}
    with pytest.raises(ValueError, match="not of request 4"):
        read_whole(str(path), 4, 1000)
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        read_whole(str(path), 3, 10)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        read_whole(str(link), 3, 1000)


SCRIPT = """
import _tracemalloc, os, sys, time
from guardrun.hooks import step
from guardrun.hooks.rank.rank import active
from guardrun.hooks.wire.board import Field

plain = {name: getattr(_tracemalloc, name) for name in ("start", "stop", "is_tracing")}
kept = []
def remember():
    kept.append(bytearray(50_000))

child = None
while not active.words[Field.EXAMINE_GIVEN]:
    remember()
    step()
    time.sleep(0.01)
    if child is None and plain["is_tracing"]():
        child = os.fork()
        if not child:
            os._exit(7 if plain["is_tracing"]() or _tracemalloc.start is not plain["start"] else 0)
is_same = all(getattr(_tracemalloc, name) is function for name, function in plain.items())
print(plain["is_tracing"](), is_same, active.examination, os.waitpid(child, 0)[1])
"""


def test_a_real_rank_names_its_leak_and_traces_no_more_then(bed: Bed) -> None:
    """Nor does a child that it forks meanwhile."""
    process = bed.start(["-c", SCRIPT])
    bed.wait_until(Field.STEP, lambda step: step > 5)
    request = {"number": 1, "what": "allocations", "arguments": {"seconds": 10.0}}
    write_whole(str(bed.sockets / request_name(0, 0)), request)
    bed.board().words[Field.EXAMINE_ASKED] = 1
    bed.wait_until(Field.EXAMINE_GIVEN)
    told = read_whole(str(bed.sockets / answer_name(0, 0)), 1, MAX_ANSWER_BYTES)["told"]
    assert (told["sites"][0]["file"], told["sites"][0]["line"]) == ("<string>", 10)
    # Hundreds of steps, and milliseconds, where nothing else runs.
    assert told["grown"]["steps"] >= 2 and told["snapshots_s"] < 5.0
    assert told["sites"][0]["bytes"] > 0.8 * 50_000 * told["grown"]["steps"]
    done = finish(process)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True None 0\n", "")


def test_a_rank_that_ends_meanwhile_ends_well(bed: Bed) -> None:
    code = """
import _tracemalloc, time
while not _tracemalloc.get_tracemalloc_memory() > 100_000: time.sleep(0.05); x = [[] for _ in range(5000)]
print("ends")
"""
    process = bed.start(["-c", code])
    bed.wait_until(Field.HEART_NS)
    request = {"number": 1, "what": "allocations", "arguments": {"seconds": 600}}
    write_whole(str(bed.sockets / request_name(0, 0)), request)
    bed.board().words[Field.EXAMINE_ASKED] = 1
    done = finish(process, 60.0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    assert bed.board()[Field.EXAMINE_GIVEN] == 0 and json.loads((bed.sockets / request_name(0, 0)).read_text())
