"""What only one rank calls, as it saves in the place of all, waits for no other."""

from __future__ import annotations

from _thread import get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.patches.collectives import wrap_collective
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import OPS


def barrier(group: Any = None, async_op: bool = False) -> str:
    return "met"


def group_of(size: int) -> SimpleNamespace:
    return SimpleNamespace(size=lambda: size, group_name="some")


@pytest.fixture
def saving(rank: Rank) -> Rank:
    """This thread saves, and another one trains; two ranks."""
    rank.owner_ident, rank.saving_ident, rank.world_size = get_ident() + 1, get_ident(), 2
    return rank


def test_a_group_of_several_is_refused(saving: Rank) -> None:
    call = wrap_collective(barrier, saving, OPS.index("barrier"))
    for arguments in ({}, {"group": group_of(2)}):
        with pytest.raises(RuntimeError, match=r"barrier\(\) in a function given to save_with\(\): other ranks"):
            call(**arguments)
    with pytest.raises(RuntimeError, match="other ranks"):
        call(group_of(3))


def test_who_waits_for_nobody_is_not(saving: Rank) -> None:
    call = wrap_collective(barrier, saving, OPS.index("barrier"))
    assert call(group_of(1)) == "met"
    saving.world_size = 1
    assert call() == "met"


def test_nor_is_any_other_thread(saving: Rank) -> None:
    saving.saving_ident = 0
    assert wrap_collective(barrier, saving, OPS.index("barrier"))() == "met"
