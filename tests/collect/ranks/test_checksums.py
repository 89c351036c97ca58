"""The checksums page, read while it is written, torn, written over, made anew, or none at all."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.checksums.page import ChecksumsPage, pack_names
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.checksums_page import (
    HEAD_WORDS,
    MAX_RECORDS,
    MAX_TENSORS,
    NAMES_BYTES,
    RECORD_WORDS,
    Head,
    Kind,
    Record,
    checksums_name,
)
from guardrun.supervisor.collect.ranks.checksums import (
    MAX_NAMES_CHARS,
    MAX_PENDING,
    ChecksumsReader,
    fold_sums,
    unpack_names,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / checksums_name(0, 0)


@pytest.fixture
def page(rank: Rank) -> Iterator[ChecksumsPage]:
    page = ChecksumsPage(rank)
    yield page
    page.close()


@pytest.fixture
def reader(path: Path) -> Iterator[ChecksumsReader]:
    reader = ChecksumsReader(path)
    yield reader
    reader.close()


def put(page: ChecksumsPage, count: int, *sums: int) -> None:
    page.put_sums((77, 4, count, count + 5), (9, count % 2 == 1), Kind.PARAMETERS, 123, list(sums))


def counts(reader: ChecksumsReader) -> list[int]:
    reader.read(100)
    return [check.count for check in reader.take_checks()]


def poke(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<q", value))


def test_each_check_is_read_once_with_the_resumed_base(page: ChecksumsPage, reader: ChecksumsReader) -> None:
    put(page, 50, 1, 2**64 - 1)
    page.put_names((77, 4, 50, 55), (9, False), pack_names(["a model", "a.weight", "b.weight"]))
    reader.read(100)
    [check, names] = reader.take_checks()
    assert (check.of, check.kind, check.replicas, check.count, check.step) == ("4d", 0, 4, 50, 155)
    assert (check.is_echo, check.layout, check.writes, check.tensors) == (False, 123, 9, 2)
    assert check.digests == fold_sums([1, 2**64 - 1], is_echo=False) != fold_sums([1, 2**64 - 2], is_echo=False)
    assert len(check.digests) == 16
    assert (names.kind, names.names) == (2, ["a model", "a.weight", "b.weight"])
    assert counts(reader) == []
    put(page, 61, 1)
    reader.read(0)
    assert [(check.is_echo, check.step) for check in reader.take_checks()] == [(True, 66)]


def test_those_that_were_written_over_are_lost(page: ChecksumsPage, reader: ChecksumsReader) -> None:
    for count in range(MAX_RECORDS + 3):
        put(page, count, 1)
    assert counts(reader) == list(range(3, MAX_RECORDS + 3))


def test_what_is_not_reported_is_bounded(page: ChecksumsPage, reader: ChecksumsReader) -> None:
    for count in range(3 * MAX_PENDING):
        put(page, count, 1)
        reader.read(0)
    assert len(reader.take_checks()) == MAX_PENDING


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (Record.TAIL, 0),
        (Record.HEAD, 7),
        (Record.LENGTH, 0),
        (Record.LENGTH, -1),
        (Record.LENGTH, MAX_TENSORS + 1),
        (Record.LENGTH, 1 << 62),
        (Record.KIND, 9),
        (Record.KIND, -1),
    ],
)
def test_a_record_that_is_being_written_or_claims_too_much_is_left_out(
    page: ChecksumsPage, reader: ChecksumsReader, path: Path, word: int, value: int
) -> None:
    put(page, 1, 1)
    put(page, 2, 1)
    poke(path, HEAD_WORDS + RECORD_WORDS + word, value)
    assert counts(reader) == [1]


def test_what_is_no_page_says_nothing(reader: ChecksumsReader, path: Path, rank: Rank) -> None:
    assert counts(reader) == []
    path.write_bytes(b"no page")
    assert counts(reader) == []
    page = ChecksumsPage(rank)  # of another Python of the same rank
    put(page, 3, 1)
    assert counts(reader) == [] and counts(reader) == [3]
    poke(path, Head.MAGIC, 5)
    put(page, 4, 1)
    assert counts(reader) == []
    page.close()


def test_a_report_has_names_of_bounded_length(page: ChecksumsPage, reader: ChecksumsReader) -> None:
    names = [f"layer{place}.{'x' * 90}" for place in range(1000)]
    for count in (1, 2, 3):
        page.put_names((77, 4, count, count), (0, False), pack_names(names))
    reader.read(0)
    assert [len(check.names) for check in reader.take_checks()] == [1000, 0, 0]


def test_names_that_are_none_or_unfold_without_end_are_bounded() -> None:
    assert unpack_names(b"nothing") == []
    assert sum(map(len, unpack_names(zlib.compress(b"a" * 10**8)))) <= MAX_NAMES_CHARS
    names = [f"model.layers.{place}.attention.{place * place}.weight" for place in range(3 * MAX_TENSORS)]
    packed = pack_names(names)
    assert len(packed) <= NAMES_BYTES and unpack_names(packed) == names[: len(unpack_names(packed))]
    assert len(unpack_names(packed)) > 500
