"""The samples page, and the single losses that go with it: each told once; a page that is none tells nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrun.hooks.patches.metrics import Metrics
from guardrun.hooks.patches.sample_orders import SampleOrders
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.metrics_page import metrics_name
from guardrun.hooks.wire.samples_page import HEAD_WORDS, MAX_RECORDS, RECORD_WORDS, Flag, Head, Record, samples_name
from guardrun.supervisor.collect.ranks.metrics import LOSSES, LOSSES_EVERY, MetricsReader
from guardrun.supervisor.collect.ranks.samples import SamplesReader
from guardrun.supervisor.engine.model.events import SampleOrder

GROUP = 255


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / samples_name(0, 0)


@pytest.fixture
def page(rank: Rank) -> Iterator[SampleOrders]:
    page = SampleOrders(rank)
    yield page
    page.close()


@pytest.fixture
def reader(path: Path) -> Iterator[SamplesReader]:
    reader = SamplesReader(path)
    yield reader
    reader.close()


def put(page: SampleOrders, turn: int, group: int = GROUP, step: int = 33) -> None:
    page._write((1, turn, 32, 128, 2**62 + 1, 50, 3, int(Flag.SHUFFLES), step, group, 4 if group else 0))


def take(reader: SamplesReader) -> list[SampleOrder]:
    reader.read(100)
    return reader.take_orders()


def poke(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<q", value))


def test_each_pass_is_told_once_with_the_resumed_base(page: SampleOrders, reader: SamplesReader) -> None:
    assert take(reader) == [], "there is no page yet"
    put(page, 0, group=0)
    [order] = take(reader)
    assert order == SampleOrder(1, 0, 32, 128, "4000000000000001", 50, 3, True, False, 133, "", 0)
    assert take(reader) == [] and reader.first_step is None, "no gradients are averaged"
    put(page, 0, step=66)
    put(page, 1, step=99)
    assert [(one.turn, one.group, one.members) for one in take(reader)] == [(0, "ff", 4), (1, "ff", 4)]
    assert reader.first_step == 166


def test_what_is_no_page_says_nothing(page: SampleOrders, reader: SamplesReader, path: Path) -> None:
    put(page, 0)
    poke(path, Head.MAGIC, 1)
    assert take(reader) == []


def test_a_page_that_claims_too_much_or_holds_what_no_rank_writes(
    page: SampleOrders, reader: SamplesReader, path: Path
) -> None:
    for turn in range(3):
        put(page, turn)
    for place, word in enumerate((Record.BATCHES, Record.MEMBERS)):
        poke(path, HEAD_WORDS + place * RECORD_WORDS + word, -5)
    poke(path, Head.RECORDS, 1 << 60)
    assert [one.turn for one in take(reader)] == [2]
    assert take(reader) == []
    poke(path, Head.RECORDS, -1)
    assert take(reader) == []
    assert path.stat().st_size == 8 * (HEAD_WORDS + MAX_RECORDS * RECORD_WORDS)


# Losses ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(rank: Rank) -> Iterator[Metrics]:
    writer = Metrics(rank)
    yield writer
    writer.close()


@pytest.fixture
def losses(tmp_path: Path) -> Iterator[MetricsReader]:
    reader = MetricsReader(tmp_path / metrics_name(0, 0))
    yield reader
    reader.close()


def go(rank: Rank, writer: Metrics, steps: int) -> None:
    for _ in range(steps):
        rank.words[Field.STEP] += 1
        writer.see_loss(1.0 / rank.words[Field.STEP])
        writer._close(rank.words[Field.STEP])


def test_ranks_that_are_read_at_other_times_tell_losses_of_the_same_steps(
    rank: Rank, writer: Metrics, losses: MetricsReader
) -> None:
    told = []
    for steps in (90, 10, 500):  # it is read after so many steps each
        go(rank, writer, steps)
        losses.read(base=1)
        losses.want_losses(34 if rank.words[Field.STEP] >= 100 else None)
        told += losses.take_losses()
    assert [one.step for one in told] == [49 + LOSSES_EVERY * number for number in range(LOSSES)]
    assert told[0].loss == 1 / 48, "bit for bit"
    losses.want_losses(34)
    losses.want_losses(304)
    assert [one.step for one in losses.take_losses()][::15] == [305, 545], "of another loader's first pass, too"


def test_what_the_script_says_itself_is_told_of_no_rank(rank: Rank, writer: Metrics, losses: MetricsReader) -> None:
    losses.want_losses(0)
    writer.note_said(2.0, None)
    for _ in range(100):
        rank.words[Field.STEP] += 1
        writer.note_said(2.0, None)
    losses.read(0)
    assert losses.take_losses() == []
