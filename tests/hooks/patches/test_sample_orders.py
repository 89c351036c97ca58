"""Which samples ranks train on: read of torch's own loaders, without looking at a batch; evaluations are left out."""

from __future__ import annotations

import json
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.patches.sample_orders import FIRST, MOST_INDICES, TURNS, SampleOrders
from guardrun.hooks.rank.rank import Pace
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import HookFailed
from guardrun.hooks.wire.samples_page import samples_name
from guardrun.supervisor.collect.ranks.samples import SamplesReader
from guardrun.supervisor.engine.model.events import SampleOrder
from tests.hooks.bed import Bed, finish

RANKS = Path(__file__).parents[1] / "ranks"


def read(sockets: Path, rank: int = 0) -> list[SampleOrder]:
    reader = SamplesReader(sockets / samples_name(0, rank))
    try:
        reader.read(base=1000)
        return reader.take_orders()
    finally:
        reader.close()


def test_what_loaders_of_many_kinds_began_with() -> None:
    with Bed(world_size=2) as bed:
        done = finish(bed.start([str(RANKS / "samples.py"), "workers"]))
        assert done.returncode == 0, done.stderr
        assert bed.hear_all(HookFailed) == []
        orders = read(bed.sockets)
    expected = json.loads(done.stdout.splitlines()[-1])
    told: dict[int, list[SampleOrder]] = {}
    for order in orders:
        told.setdefault(order.loader, []).append(order)
    assert len(told) == len(expected), orders
    named = {name: told[number] for number, (name, _) in enumerate(expected)}
    for number, (name, batches) in enumerate(expected):
        first = told[number][0]
        assert (first.batches, first.turn) == (min(FIRST, len(batches)), 0), name
        assert first.distinct == len({index for batch in batches[:FIRST] for index in batch[:MOST_INDICES]}), name
        assert first.step > 1000 and first.group == ""
    never, called = named["set_epoch is never called"], named["set_epoch is called"]
    assert [(one.turn, one.epoch, one.shuffles, one.length) for one in never] == [
        (n, 0, True, 50) for n in range(TURNS)
    ]
    assert len({one.order for one in never}) == 1, "and no more than so many are told"
    assert [one.epoch for one in called] == [0, 1] and called[0].order != called[1].order
    assert called[0].order == never[0].order, "the same seed and epoch"
    assert named["numpy"][0].order == named["fetched ahead, accumulated"][0].order, "the same numbers"
    assert named["numpy"][0].length == -1
    assert [one.length for one in named["a batch sampler"]] == [40]
    assert named["single samples"][0].distinct == FIRST
    stays = named["workers that stay"]
    assert [(one.turn, one.shuffles) for one in stays] == [(0, False), (1, False)]
    assert stays[0].order == stays[1].order


class Sampler:
    """Of which nothing is asked but whether it is the same one."""


class Model:
    """A DistributedDataParallel one."""

    def __init__(self) -> None:
        self._join_config = SimpleNamespace(enable=False)


# By itself ---------------------------------------------------------------------------------------------------------


class Driven:
    """The recorder of a rank, and batches that are trained on."""

    def __init__(self, sockets: Path, rank: int = 0) -> None:
        self.failed: list[object] = []
        self.sockets, self.number = sockets, rank
        self.rank: Any = SimpleNamespace(
            samples=None,
            pace=Pace(),
            words=[0] * len(Field) * 2,
            sockets=str(sockets),
            attempt=0,
            global_rank=rank,
            pid=1,
            is_owner=lambda: True,
            fail=lambda hook, error: self.failed.append((hook, error)),
        )
        self.orders = self.rank.samples = SampleOrders(self.rank)

    def go(self, batches: list[Any], sampler: Any = None) -> SampleOrder:
        """One pass."""
        iterator = SimpleNamespace(_num_yielded=0, _index_sampler=sampler or Sampler())
        for indices in batches:
            iterator._num_yielded += 1
            self.orders.on_batch(iterator, indices)
            self.rank.pace.backwards += 1
        self.orders.on_end(iterator)
        assert self.failed == []
        return read(self.sockets, self.number)[-1]

    def close(self) -> None:
        self.orders.close()


@pytest.fixture
def driven(tmp_path: Path) -> Any:
    one = Driven(tmp_path)
    yield one
    one.close()


BATCHES = [[4 * number + n for n in range(4)] for number in range(40)]


def test_equal_orders_have_equal_sums_and_others_have_others(driven: Driven, tmp_path: Path) -> None:
    first = driven.go(BATCHES).order
    assert driven.go(BATCHES).order == first
    assert driven.go([*BATCHES[:FIRST], [7]]).order == first, "only the beginning counts"
    turned = [*BATCHES[:3], BATCHES[4], BATCHES[3], *BATCHES[5:]]
    inside = [[1, 0, 2, 3], *BATCHES[1:]]
    merged = [[0, 1], [2, 3], *BATCHES[1:]]
    longer = [[*range(MOST_INDICES + 4)], *BATCHES[1:]]
    longest = [[*range(MOST_INDICES + 5)], *BATCHES[1:]]
    others = [Driven(tmp_path, rank) for rank in range(1, 6)]
    orders = [
        one.go(batches).order for one, batches in zip(others, (turned, inside, merged, longer, longest), strict=True)
    ]
    for one in others:
        one.close()
    assert len({first, *orders}) == 6


def test_ranks_of_one_group_say_so_and_several_groups_are_none(tmp_path: Path) -> None:
    found = []
    for rank in (0, 1):
        one = Driven(tmp_path, rank)
        one.orders.add_group([1, 0] if rank else [0, 1])
        one.orders.add_group([0, 1])
        found.append(one.go(BATCHES))
        one.orders.add_group([2, 3])
        found.append(one.go(BATCHES))
        one.close()
    assert found[0].group == found[2].group != "" and found[0].members == 2
    assert found[0].order == found[2].order
    assert found[1].group == "" == found[3].group


def test_a_model_within_join_is_told(driven: Driven) -> None:
    model = Model()
    driven.orders._models.append(weakref.ref(model))
    assert not driven.go(BATCHES).is_joined
    model._join_config.enable = True
    assert driven.go(BATCHES).is_joined


def test_what_is_fetched_after_the_first_passes_costs_next_to_nothing(driven: Driven) -> None:
    """A microsecond a batch would be seen in no training; this is what the interpreter needs for it, ten times over."""
    sampler = Sampler()
    for _ in range(TURNS):
        driven.go(BATCHES, sampler)
    known = len(read(driven.sockets))
    iterator = SimpleNamespace(_num_yielded=FIRST + 2, _index_sampler=sampler)
    on_batch = driven.orders.on_batch
    best_s = min(_time(on_batch, iterator) for _ in range(5))
    assert best_s / 1000 < 5e-6
    driven.go(BATCHES, sampler)
    assert len(read(driven.sockets)) == known == TURNS


def _time(on_batch: Any, iterator: Any) -> float:
    began_s = time.perf_counter()
    for _ in range(1000):
        on_batch(iterator, None)
    return time.perf_counter() - began_s
