"""Whether gradients are finite, of all kinds and sizes, and their norm; they are only read."""

from __future__ import annotations

import math
from typing import Any

import pytest

from guardrun.hooks.guards.gradients import UnreadableError, find_norm


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_is_enough(dtype: str, bad: float) -> None:
    import torch

    for at in (0, 100, 499):
        gradients = [torch.randn(3, 7).to(getattr(torch, dtype)), torch.ones(500, dtype=getattr(torch, dtype))]
        version = gradients[1]._version
        assert find_norm(gradients, torch) is not None
        gradients[1][at] = bad
        assert find_norm(gradients, torch) is None
        assert gradients[1]._version == version + 1


def test_numbers_whose_norm_overflows_are_finite() -> None:
    import torch

    assert find_norm([torch.full((100,), 3e38), torch.full((9,), 6e4, dtype=torch.float16)], torch) == math.inf
    assert find_norm([torch.full((100,), 3e38), torch.tensor([math.inf])], torch) is None


@pytest.mark.filterwarnings("ignore:Sparse")
def test_kinds_that_hold_nothing_or_are_laid_out_otherwise() -> None:
    import torch

    sparse = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,))
    gradients = [torch.ones(0), torch.ones(3, dtype=torch.int64), sparse, torch.ones(4, 4).t()[1:]]
    assert find_norm(gradients, torch) == pytest.approx(math.sqrt(14 + 12))
    assert find_norm([], torch) == 0.0
    assert find_norm([torch.sparse_coo_tensor([[1]], [math.nan], (4,))], torch) is None
    conjugated = torch.tensor([complex(1, math.nan)]).conj()
    assert find_norm([conjugated], torch) is None


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_nobody_can_look_into_is_said() -> None:
    import torch

    class Own(torch.Tensor):
        pass

    strange: list[Any] = [torch.ones(2).as_subclass(Own), torch.ones(2, device="meta"), torch.eye(3).to_sparse_csr()]
    for gradient in strange:
        with pytest.raises(UnreadableError, match="not looked into"):
            find_norm([torch.ones(2), gradient], torch)
