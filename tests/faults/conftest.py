"""Fixtures
bed: a training on one node
job: one on several (tests/fleet_runs)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.bed import Bed
from tests.fleet_runs.conftest import hosts, job  # noqa: F401  # fixtures


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with ExitStack() as stack:
        bed = Bed(tmp_path, stack)
        stack.callback(bed.close)
        yield bed
