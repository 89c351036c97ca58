"""What a checkpoint holds, by what ranks were handed out; of pages that nobody would write as well."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire import ledger_page as page
from guardrun.hooks.wire.ledger_page import Flag, Head, Record, ledger_name
from guardrun.supervisor.collect.ranks import ledgers
from guardrun.supervisor.collect.ranks.ledgers import (
    LoaderAccount,
    Ring,
    find_accounts,
    find_places,
    read_rings,
    read_saves,
)

DONE = 10


def record(step: int, batches: int | None = None, **more: int) -> tuple[int, ...]:
    """Of the batch that was taken in a step, one a step unless something else is said."""
    count = step if batches is None else batches
    fields = {"STEP": step, "PASS": 1, "EPOCH": 0, "BATCHES": count, "SAMPLES": 4 * count, "DIGEST": 1000 + count}
    fields |= {"FIRST": 1001, "GAPS": 0, "TRAINED": count - 1, **more}
    return tuple(
        fields.get(Record(place).name, 0) if place in list(Record) else 0 for place in range(page.RECORD_WORDS)
    )


def ring(last: int, key: str = "a", **more: int) -> Ring:
    return Ring(key, [record(step, **more) for step in range(1, last + 1)])


def composed(*rings: list[Ring], began_ns: int = 100) -> list[LoaderAccount]:
    return find_accounts({rank: find_places(own, DONE) for rank, own in enumerate(rings)}, DONE, 0, began_ns)


def test_what_was_taken_for_steps_after_the_save_does_not_count() -> None:
    [found] = composed([ring(DONE + 2)], [ring(DONE)])
    assert (found.why, found.is_ended, found.is_plain, found.epoch) == ("", False, True, 0)
    assert {rank: (own.batches, own.samples) for rank, own in found.ranks.items()} == {0: (10, 40), 1: (10, 40)}
    assert found.ranks[0].near == {count: 1000 + count for count in range(7, 13)}
    assert max(found.ranks[1].near) == 10


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ([ring(DONE, TRAINED=3, GAPS=1)], ledgers.NOT_PLAIN),
        ([ring(DONE - 1)], "what rank 1 was handed out"),
        ([], "what rank 1 was handed out"),
        ([Ring("a", [record(step, step + 1) for step in range(1, 11)])], ledgers.UNEQUAL),
    ],
)
def test_of_all_ranks_it_must_be_known_and_alike(other: list[Ring], why: str) -> None:
    [found] = composed([ring(DONE)], other)
    assert found.why.startswith(why)


def ended(at: int, at_ns: int, **more: int) -> tuple[int, ...]:
    return record(at + 1, at, FLAGS=int(Flag.ENDED), AT_NS=at_ns, **more)


@pytest.mark.parametrize(("at_ns", "is_ended"), [(99, True), (101, False)])
def test_a_pass_that_was_over_when_the_save_began_is(at_ns: int, is_ended: bool) -> None:
    one = ring(DONE)
    one.records.append(ended(DONE, at_ns))
    [found] = composed([one], [ring(DONE)])
    assert found.is_ended is is_ended and found.why == (ledgers.OVER if is_ended else "")


def test_evaluations_are_none_of_it() -> None:
    evaluation = Ring("b", [record(8, count, TRAINED=0, GAPS=count - 1, PASS=2) for count in range(1, 7)])
    [found] = composed([ring(DONE), evaluation])
    assert found.key == "a" and not found.why
    assert composed([evaluation]) == []


def test_loaders_that_are_taken_from_in_turn() -> None:
    first, second = (Ring(key, [record(step) for step in range(begin, 11, 2)]) for key, begin in (("a", 1), ("b", 2)))
    [found] = composed([first, second])
    assert found.why == ledgers.IN_TURN
    both = composed([ring(DONE), ring(DONE, "b")])
    assert [one.why for one in both] == ["", ""]
    over = ring(DONE, "b")
    over.records.append(ended(DONE, 1))
    assert {one.why for one in composed([ring(DONE), over])} == {ledgers.ONE_OVER}
    early = Ring("b", [record(step) for step in range(1, 5)])
    late = Ring("a", [record(step) for step in range(100, 111)])
    [found] = find_accounts({0: find_places([early, late], 110)}, 110, 0)
    assert not found.why, "what training has long stopped to take from"


# Pages ---------------------------------------------------------------------------------------------------------------


def write_page(folder: Path, count: int, records: list[tuple[int, ...]], **head: int) -> Path:
    words = [0] * page.HEAD_WORDS
    words[Head.MAGIC], words[Head.LOADERS] = page.MAGIC, 1
    words[Head.FIRST], words[Head.FIRST + 1] = 0xABC, count
    for name, value in head.items():
        words[Head[name]] = value
    data = bytearray(page.SIZE_BYTES)
    struct.pack_into(f"<{page.HEAD_WORDS}q", data, 0, *words)
    for number, one in enumerate(records, count - len(records)):
        at = 8 * (page.HEAD_WORDS + page.RECORD_WORDS * (number % page.RECORDS))
        struct.pack_into(f"<{page.RECORD_WORDS}q", data, at, *one)
    path = folder / ledger_name(0, 0)
    path.write_bytes(data)
    return path


def test_a_ring_that_has_gone_round_is_read_in_order(tmp_path: Path) -> None:
    count = 2 * page.RECORDS + 5
    write_page(tmp_path, count, [record(step) for step in range(count - page.RECORDS + 1, count + 1)])
    [found] = read_rings(tmp_path, 0, 0)
    assert found.key == "abc"
    # The oldest is where the next one would be written.
    assert [one[Record.STEP] for one in found.records] == list(range(count - page.RECORDS + 2, count + 1))


@pytest.mark.parametrize("count", [40, page.RECORDS + 3, 2 * page.RECORDS + 100])
def test_at_a_save_the_last_ones_are_enough(count: int, tmp_path: Path) -> None:
    write_page(tmp_path, count, [record(step) for step in range(max(1, count - page.RECORDS + 1), count + 1)])
    [whole] = read_rings(tmp_path, 0, 0)
    [last] = read_rings(tmp_path, 0, 0, count - 3)
    assert last.records == whole.records[-ledgers.FEW :]
    [far] = read_rings(tmp_path, 0, 0, max(1, count - 2 * ledgers.FEW))
    assert far.records == whole.records, "a rank that has gone on since"


@pytest.mark.parametrize("head", [{"MAGIC": 1}, {"MISSED": 1}, {"LOADERS": -4}, {"LOADERS": 0}])
def test_pages_of_nobody(head: dict[str, int], tmp_path: Path) -> None:
    write_page(tmp_path, 3, [record(step) for step in range(1, 4)], **head)
    assert read_rings(tmp_path, 0, 0) == []


@pytest.mark.parametrize("count", [-1, -(1 << 63), (1 << 63) - 1, 1 << 40])
def test_counts_that_no_rank_has(count: int, tmp_path: Path) -> None:
    path = write_page(tmp_path, 3, [record(step, GAPS=-1) for step in range(1, 4)], SAVES=count, LOADERS=1 << 60)
    data = bytearray(path.read_bytes())
    struct.pack_into("<q", data, 8 * (Head.FIRST + 1), count)
    path.write_bytes(data)
    found: list[Any] = read_rings(tmp_path, 0, 0)
    assert len(found) <= page.LOADERS and all(len(one.records) <= page.RECORDS for one in found)
    assert len(read_saves(tmp_path, 0, 0)) <= page.SAVES
    path.write_bytes(data[:100])
    assert read_rings(tmp_path, 0, 0) == [] == read_saves(tmp_path, 0, 0)
    path.unlink()
    assert read_rings(tmp_path, 0, 0) == [] == read_saves(tmp_path, 0, 0)
