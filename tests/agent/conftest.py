"""Fixture `agent`: a real node agent, sensors of which are a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.bed import AgentBed


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentBed]:
    bed = AgentBed(tmp_path)
    try:
        yield bed
    finally:
        bed.close()
