"""The metrics page, read while it is written, torn, written over, made anew, or none at all."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.patches.metrics import Metrics
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.metrics_page import HEAD_WORDS, MAX_RECORDS, RECORD_WORDS, Head, Record, metrics_name
from guardrun.supervisor.collect.ranks import metrics as reading
from guardrun.supervisor.collect.ranks.metrics import MetricsReader


@pytest.fixture
def writer(rank: Rank) -> Iterator[Metrics]:
    writer = Metrics(rank)
    yield writer
    writer.close()


@pytest.fixture
def reader(rank: Rank, tmp_path: Path) -> Iterator[MetricsReader]:
    reader = MetricsReader(tmp_path / metrics_name(0, 0))
    yield reader
    reader.close()


def write(rank: Rank, writer: Metrics, *losses: float) -> None:
    for loss in losses:
        rank.words[Field.STEP] += 1
        writer.note_said(loss, None)


def losses(reader: MetricsReader) -> list[float]:
    return [record.loss for record in reader.records()]


def poke(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<q", value))


def test_each_record_is_read_once(rank: Rank, writer: Metrics, reader: MetricsReader) -> None:
    assert losses(reader) == [], "there is no page yet"
    write(rank, writer, 1.0, 2.0)
    assert losses(reader) == [1.0, 2.0]
    assert losses(reader) == []
    write(rank, writer, 3.0)
    assert losses(reader) == [3.0]


def test_what_was_written_over_is_lost_and_the_rest_in_order(
    rank: Rank, writer: Metrics, reader: MetricsReader
) -> None:
    write(rank, writer, *map(float, range(10)))
    assert len(losses(reader)) == 10
    write(rank, writer, *map(float, range(10, 10 + MAX_RECORDS + 7)))
    assert losses(reader) == [float(number) for number in range(17, 17 + MAX_RECORDS)]


@pytest.mark.parametrize("word", [Record.HEAD, Record.TAIL])
def test_a_record_that_is_being_written_is_left_out(
    rank: Rank, writer: Metrics, reader: MetricsReader, tmp_path: Path, word: Record
) -> None:
    write(rank, writer, 1.0, 2.0, 3.0)
    poke(tmp_path / metrics_name(0, 0), HEAD_WORDS + RECORD_WORDS + word, 0)
    assert losses(reader) == [1.0, 3.0]


def test_a_page_that_is_made_anew_is_read_anew(rank: Rank, writer: Metrics, reader: MetricsReader) -> None:
    """The rank's program may replace itself (exec): its hooks begin anew."""
    write(rank, writer, 1.0, 2.0)
    assert losses(reader) == [1.0, 2.0]
    again = Metrics(rank)
    write(rank, again, 5.0)
    again.close()
    assert losses(reader) + losses(reader) == [5.0]


@pytest.mark.parametrize("content", [b"", b"short", bytes(8 * HEAD_WORDS), b"\xff" * 70_000])
def test_what_is_no_page_says_nothing(reader: MetricsReader, tmp_path: Path, content: bytes) -> None:
    (tmp_path / metrics_name(0, 0)).write_bytes(content)
    assert losses(reader) == [] and reader.take_report() is None


def test_a_page_that_claims_too_much_says_nothing_endless(
    rank: Rank, writer: Metrics, reader: MetricsReader, tmp_path: Path
) -> None:
    write(rank, writer, 1.0)
    poke(tmp_path / metrics_name(0, 0), Head.RECORDS, 1 << 62)
    assert losses(reader) == []


def test_it_is_reported_every_few_seconds_and_an_odd_step_at_once(
    rank: Rank, writer: Metrics, reader: MetricsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(reading.time, "monotonic", lambda: now_s)
    write(rank, writer, 1.0, 3.0, 2.0)
    reader.read(base=100)
    told = reader.take_report()
    assert told is not None and (told.first, told.last, told.loss, told.learning_rate) == (101, 103, 2.0, None)
    write(rank, writer, 4.0)
    reader.read(base=100)
    assert reader.take_report() is None
    write(rank, writer, math.nan)
    reader.read(base=100)
    told = reader.take_report()
    assert told is not None and (told.first, told.last, told.loss, told.nonfinite) == (104, 105, 4.0, 1)
    assert [step.step for step in told.odd] == [105]
    now_s += 10 * reading.EVERY_S
    assert reader.take_report() is None, "nothing new"
    write(rank, writer, 5.0)
    reader.read(base=100)
    told = reader.take_report()
    assert told is not None and told.loss == 5.0 and told.odd == []
