"""Tensors that become more are counted, by what they are; those that come and go are not, and none is held on to."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from operator import attrgetter

import pytest
import torch

from guardrun.hooks.examine import tensors as module
from guardrun.hooks.examine.tensors import Tensors, count_tensors

SHAPE = (3, 1001)


def of_shape(tensors: Tensors, shape: tuple[int, ...] = SHAPE) -> list[dict[str, object]]:
    return [one for one in tensors.describe() if one["shape"] == list(shape)]


def test_tensors_that_become_more_are_told() -> None:
    tensors, kept = Tensors(), [torch.zeros(SHAPE)]
    for is_after in (False, True, True):
        tensors.count(is_after)
        kept += [torch.zeros(SHAPE) for _ in range(10)]
    (found,) = of_shape(tensors)
    size = 10 * 3 * 1001 * 4
    assert found == {"bytes": size, "tensors": 10, "device": "cpu", "dtype": "torch.float32", "shape": list(SHAPE)}
    assert tensors.took_ns > 0 and len(kept) == 31


def test_those_that_come_and_go_are_not() -> None:
    """More at one of the moments than at another, as it happens."""
    tensors = Tensors()
    for is_after, count in ((False, 0), (True, 0), (True, 7)):
        batch = [torch.zeros(SHAPE) for _ in range(count)]
        tensors.count(is_after)
        del batch
    assert of_shape(tensors) == []


def test_parameters_are_left_out() -> None:
    tensors, kept = Tensors(), []
    for is_after in (False, True):
        tensors.count(is_after)
        kept.append(torch.nn.Parameter(torch.zeros(SHAPE)))
    assert of_shape(tensors) == [] and len(kept) == 2


class Thing:
    """Can be referred to weakly."""


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_lives_longer_for_being_gone_through(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tensors nor any other objects, young or old, whether it succeeds or not."""
    if fails:
        monkeypatch.setattr(module, "_LOOK", attrgetter("device", "dtype", "shape", "no_such_thing"))
    gc.collect()
    old: list[object] = [*(Thing() for _ in range(200)), *(torch.zeros(SHAPE) for _ in range(200))]
    gc.collect()
    young: list[object] = [*(Thing() for _ in range(200)), *(torch.zeros(SHAPE) for _ in range(200))]
    seen = [weakref.ref(one) for one in old + young]
    with nullcontext() if not fails else pytest.raises(AttributeError):
        counted = count_tensors(torch)
        assert next(count for key, (_, count) in counted.items() if tuple(key[2]) == SHAPE) >= 400
    gc.disable()
    try:
        old.clear()
        young.clear()
        assert [ref for ref in seen if ref() is not None] == []
    finally:
        gc.enable()


def test_one_that_has_no_shape_ends_it_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Tensors()
    tensors.count(is_after=False)
    kept = [torch.zeros(SHAPE)]
    monkeypatch.setattr(module, "_LOOK", attrgetter("no_such_thing"))
    tensors.count(is_after=True)
    assert tensors.describe() == [] and "AttributeError" in tensors.trouble and kept


def test_where_there_are_too_many_objects_they_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Tensors()
    monkeypatch.setattr(module, "MAX_NS", -1)
    tensors.count(is_after=False)
    took_ns = tensors.took_ns
    tensors.count(is_after=True)
    assert tensors.took_ns == took_ns > 0
    assert tensors.describe() == [] and "too many objects" in tensors.trouble


def test_without_a_count_at_the_beginning_nothing_is_more() -> None:
    tensors, kept = Tensors(), [torch.zeros(SHAPE)]
    tensors.count(is_after=True)
    assert tensors.describe() == [] and kept
