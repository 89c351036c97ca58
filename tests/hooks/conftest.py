from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hooks.bed import Bed


@pytest.fixture
def bed() -> Iterator[Bed]:
    with Bed() as bed:
        yield bed
