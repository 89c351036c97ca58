from __future__ import annotations

from collections.abc import Iterator

import pytest

from guardrun.hooks.rank.rank import Rank
from tests.hooks.bed import Bed


@pytest.fixture
def bed() -> Iterator[Bed]:
    with Bed() as bed:
        yield bed


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    """One in this process, that nobody watches."""
    monkeypatch.setenv("RANK", "0")
    return Rank({"sockets": "/nowhere"}, 0)
