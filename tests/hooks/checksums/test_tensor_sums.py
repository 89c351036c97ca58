"""A bit that flips changes a tensor's sum, whatever its type, layout and size; and nothing else does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from guardrun.hooks.checksums.page import fold
from guardrun.hooks.checksums.replicas import readable
from guardrun.hooks.checksums.tensor_sums import CHUNK, SMALL, Sums, has_room, is_readable
from guardrun.hooks.wire.checksums_page import MAX_TENSORS

HOST = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
SHAPES = ((7,), (3, 5), (4, 6, 2, 2), (1,))


def make_all() -> list[Any]:
    """Of all kinds, with odd and even numbers of elements, transposed, channels last, and a part of another."""
    torch.manual_seed(4)
    found = [(100 * torch.rand(shape)).to(dtype) for dtype in DTYPES for shape in SHAPES]
    found += [torch.randn(3, 5).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    found += [torch.randn(9)[1:], torch.randn(4, 6)[1:], torch.randn(9).bfloat16()[3:8], torch.randn(2 * SMALL)]
    found += [torch.full((4,), torch.nan), torch.nn.Parameter(torch.randn(3))]
    return found


def sums_of(tensors: list[Any], *, joins: bool) -> dict[int, int]:
    sums = Sums(torch, HOST, joins=joins)
    with torch.no_grad():
        sums.start(list(enumerate(tensors)), {})
    assert sums.are_here()
    return dict(sums.read())


@pytest.mark.parametrize("joins", [False, True])
def test_a_flipped_bit_changes_the_sum_of_its_tensor_alone(joins: bool) -> None:
    tensors = make_all()
    before = sums_of(tensors, joins=joins)
    assert sorted(before) == list(range(len(tensors)))
    for place, tensor in enumerate(tensors):
        data = tensor.detach()
        whole = data.contiguous().view(-1).view(torch.uint8).clone()
        for bit in (0,) if data.dtype is torch.bool else (0, 3, 6):  # copying a bool makes it 0 or 1
            changed = whole.clone()
            changed[-1] ^= 1 << bit
            others = list(tensors)
            others[place] = changed.view(data.dtype).view(data.shape)
            others[place] = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype).copy_(others[place])
            after = sums_of(others, joins=joins)
            assert [one for one in before if before[one] != after[one]] == [place], (place, data.dtype, data.shape)
    assert sums_of(make_all(), joins=joins) == before


def test_many_small_tensors_are_joined_in_bounded_parts() -> None:
    tensors = [torch.full((SMALL,), float(place)) for place in range(CHUNK // SMALL + 3)]
    sums, ends = Sums(torch, HOST, joins=True), dict[tuple[int, ...], Any]()
    sums.start(list(enumerate(tensors)), ends)
    assert sorted(map(len, ends)) == [3, CHUNK // SMALL], "in two parts"
    # The bits of each number, SMALL times.
    expected = {n: SMALL * int(torch.tensor(float(n)).view(torch.int32)) for n in range(len(tensors))}
    assert dict(sums.read()) == expected


def test_what_has_gaps_or_is_no_memory_is_left_out() -> None:
    gaps = (torch.randn(4, 6)[:, ::2], torch.randn(1, 3).expand(4, 3), torch.empty(0), torch.empty(3, device="meta"))
    assert not any(is_readable(torch, tensor) for tensor in (*gaps, torch.randn(3, 3).to_sparse()))
    assert all(is_readable(torch, tensor) for tensor in make_all())


class Quantized(torch.Tensor):  # type: ignore[misc]  # mypy skips torch
    """Whoever asks it for anything may get anything."""


def test_subclasses_are_left_out_and_tied_tensors_are_summed_once() -> None:
    tied = torch.nn.Parameter(torch.randn(3))
    named = [("a", tied), ("b", torch.randn(3).as_subclass(Quantized)), ("c", tied), ("d", torch.randn(2))]
    found, layout = readable(torch, named)
    assert [name for name, _ in found] == ["a", "d"]
    assert readable(torch, named)[1] == layout != readable(torch, named[:3])[1]
    shifted = ("d", torch.randn(3)[1:])
    assert readable(torch, [*named[:3], shifted])[1] != layout, "its words are others"


def test_of_very_many_tensors_several_share_a_sum() -> None:
    sums = list(range(2 * MAX_TENSORS + 5))
    folded = fold(sums)
    assert len(folded) == MAX_TENSORS and all(0 <= number < 1 << 64 for number in folded)
    for place in (3, MAX_TENSORS + 3, 2 * MAX_TENSORS + 3):
        changed = list(sums)
        changed[place] += 1 << 63
        assert [slot for slot, one in enumerate(fold(changed)) if one != folded[slot]] == [3]
    assert fold([5, 6]) == [5, 6]


@pytest.mark.parametrize(
    ("reserved", "allocated", "free", "fraction", "expected"),
    [
        (10_000, 9_000, 0, 1.0, True),
        (10_000, 9_990, 70_000, 1.0, True),
        (10_000, 9_990, 100, 1.0, False),
        (10_000, 9_990, 70_000, 10_050 / 80_000, False),
        (10_000, 9_990, 70_000, 11_000 / 80_000, True),
    ],
    ids=["unused", "the device has more", "all is full", "the script's own limit", "that is far"],
)
def test_a_device_that_is_full_is_left_alone(
    reserved: int, allocated: int, free: int, fraction: float, expected: bool
) -> None:
    """In MiB: what it would take, the script may need."""
    stats = {
        "reserved_bytes": {"all": {"current": reserved << 20}},
        "allocated_bytes": {"all": {"current": allocated << 20}},
    }
    module = SimpleNamespace(
        memory_stats_as_nested_dict=lambda _: stats,
        mem_get_info=lambda _: (free << 20, 80_000 << 20),
        get_per_process_memory_fraction=lambda _: fraction,
    )
    device = SimpleNamespace(type="cuda", index=0)
    assert has_room(SimpleNamespace(cuda=module), device) is expected


def test_where_no_allocator_tells_there_is_room() -> None:
    assert has_room(SimpleNamespace(), SimpleNamespace(type="npu", index=0))
    assert has_room(SimpleNamespace(cpu=SimpleNamespace()), SimpleNamespace(type="cpu", index=None))
