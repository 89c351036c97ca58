"""Which batch training had last: told with the exception that ended it, and cheap until then."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.data.batch_trail import find_epoch
from guardrun.hooks.patches.dataloaders import Batches, render_indices
from guardrun.hooks.wire.messages import Beat, UncaughtException
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.ranks.exits import parse_raised
from tests.hooks.bed import DEADLINE_S, Bed, finish

RANKS = Path(__file__).parents[1] / "ranks"


def raise_in(bed: Bed, *arguments: str) -> dict[str, Any]:
    heard = bed.sockets / "heard"
    process = bed.start([str(RANKS / "batches.py"), *arguments], more={"HEARD": str(heard)})
    said = bed.wait_for(UncaughtException)
    heard.touch()
    done = finish(process)
    assert done.returncode == 1
    assert "ValueError: bad" in done.stderr
    left = parse_raised((bed.sockets / "raised-0-0.json").read_bytes(), EngineClock(0.0, 0.0))
    assert left is not None
    assert left.data == said.data
    return left.data


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_batch_that_training_failed_on(bed: Bed, workers: str) -> None:
    data = raise_in(bed, workers, "training", "6")
    assert data == {
        "batch": 17,
        "epoch": 1,
        "indices": [24, 25, 26, 27],
        "indices_before": [20, 21, 22, 23],
        "size": 4,
    }


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_batch_that_could_not_be_loaded(bed: Bed, workers: str) -> None:
    data = raise_in(bed, workers, "loading", "3")
    assert (data["batch"], data["indices"], data["epoch"]) == (4, [12, 13, 14, 15], 0)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("where", ["training", "loading"])
def test_a_rank_that_stands_still_tells_at_which_batch(bed: Bed, workers: str, where: str) -> None:
    """Where it stands only for a while on a busy machine, it tells that, too."""
    bed.start([str(RANKS / "batches.py"), workers, where, "6", "stay"])
    awaited = {"batch": 7, "epoch": 0, "indices": [24, 25, 26, 27], "size": 4, "is_awaited": True}
    had = {"batch": 17, "epoch": 1, "indices": [24, 25, 26, 27], "indices_before": [20, 21, 22, 23], "size": 4}
    expected = awaited if where == "loading" else had
    until = time.monotonic() + DEADLINE_S
    while expected not in (told := [beat.data for beat in bed.hear_all(Beat) if beat.data]):
        assert time.monotonic() < until, told
    assert told.count(expected) == 1


def test_what_could_wait_for_a_device_is_not_asked_what_it_is() -> None:
    class Number:
        def __int__(self) -> int:
            raise AssertionError("asked")

    batches, iterator = Batches(), SimpleNamespace(_index_sampler=SimpleNamespace(), _guardrun_sent={0: [Number()]})
    batches.asked = iterator
    assert batches.describe_still() == {"batch": 1, "is_awaited": True}
    batches.asked = None
    batches.note_batch(iterator, 1)
    assert batches.describe_still() == {"batch": 1}


def test_no_indices_where_batches_come_in_any_order(bed: Bed) -> None:
    data = raise_in(bed, "2", "unordered", "3")
    assert data == {"batch": 14, "epoch": 1}


def test_a_script_without_data_loaders_tells_of_none(bed: Bed) -> None:
    bed.run("1 / 0")
    assert bed.wait_for(UncaughtException).data == {}
    assert json.loads((bed.sockets / "raised-0-0.json").read_text())["data"] == {}


@pytest.mark.parametrize(
    ("indices", "shown"),
    [
        (None, []),
        ([None, None], []),
        (7, [7]),
        ([1, "shard-3/17", (2, 3)], [1, "shard-3/17", "(2, 3)"]),
        (list(range(1000)), list(range(64))),
        ("x" * 1000, ["x" * 100]),
    ],
)
def test_indices_are_bounded(indices: object, shown: list[object]) -> None:
    assert render_indices(indices) == shown


def test_what_is_no_iterator_of_torchs_costs_nothing_but_the_indices() -> None:
    batches = Batches()
    batches.note_batch(object(), 3)
    assert batches.describe() == {"batch": 3}
    assert find_epoch(object()) is None
