"""A journal is followed: what is new, each once, through rotations, torn lines and more than may be read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.rundir.journal import Journal
from guardrun.supervisor.watch.journal_tail import JournalTail


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def add(run_dir: Path, first: int, count: int) -> None:
    journal = Journal(run_dir, next_number=first)
    for number in range(first, first + count):
        journal.append(ev.HoldSet(is_held=True, who=f"{number} {'x' * 100}"), [], float(number))
    journal.close()


def numbers(tail: JournalTail) -> list[int]:
    return [entry.number for entry in tail.read()]


def test_each_line_once(run_dir: Path) -> None:
    add(run_dir, 0, 3)
    tail = JournalTail(run_dir)
    assert numbers(tail) == [0, 1, 2]
    assert numbers(tail) == []
    with open(run_dir / "events.jsonl", "ab") as file:
        file.write(b'\xff nonsense\n{"n": 9, "torn')
        file.flush()
        assert numbers(tail) == []
        file.write(b'"}\n')
    add(run_dir, 3, 2)
    assert numbers(tail) == [3, 4]


def test_the_rest_of_a_file_that_was_set_aside(run_dir: Path) -> None:
    add(run_dir, 0, 3)
    tail = JournalTail(run_dir)
    assert numbers(tail) == [0, 1, 2]
    add(run_dir, 3, 2)
    (run_dir / "events.jsonl").rename(run_dir / "events.jsonl.1")
    add(run_dir, 5, 2)
    assert numbers(tail) == [3, 4, 5, 6]
    assert numbers(JournalTail(run_dir)) == [0, 1, 2, 3, 4, 5, 6]


def test_the_first_look_begins_near_the_end(run_dir: Path) -> None:
    add(run_dir, 0, 1000)
    found = numbers(JournalTail(run_dir, first_bytes=5000))
    assert 10 < len(found) < 40 and found[-1] == 999 and found == list(range(found[0], 1000))
    (run_dir / "events.jsonl").rename(run_dir / "events.jsonl.1")
    add(run_dir, 1000, 2)
    again = numbers(JournalTail(run_dir, first_bytes=5000))
    assert again[-3:] == [999, 1000, 1001] and len(again) <= len(found)


def test_more_than_may_be_read_at_once_is_skipped(run_dir: Path) -> None:
    add(run_dir, 0, 1)
    tail = JournalTail(run_dir, each_bytes=5000)
    assert numbers(tail) == [0] and tail.skipped_bytes == 0
    add(run_dir, 1, 1000)
    found = numbers(tail)
    assert 10 < len(found) < 40 and found[-1] == 1000 and tail.skipped_bytes > 100_000


def test_an_endless_line(run_dir: Path) -> None:
    """It is not kept in memory until it ends."""
    tail = JournalTail(run_dir, first_bytes=1000, each_bytes=1000)
    with open(run_dir / "events.jsonl", "ab") as file:
        for _ in range(5):
            file.write(b"x" * 900)
            file.flush()
            assert numbers(tail) == []
        file.write(b"\n")
    add(run_dir, 7, 2)
    assert numbers(tail) == [7, 8]


def test_a_journal_that_begins_anew_in_place(run_dir: Path) -> None:
    add(run_dir, 0, 5)
    tail = JournalTail(run_dir)
    assert len(numbers(tail)) == 5
    (run_dir / "events.jsonl").write_bytes(b"")
    add(run_dir, 0, 1)
    assert numbers(tail) == [0]


def test_no_journal_and_one_that_is_a_link(run_dir: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JournalTail(run_dir).read()
    (run_dir / "events.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="is a link"):
        JournalTail(run_dir).read()
