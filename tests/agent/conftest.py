"""Fixtures
agent: a real node agent, whose sensor reads a file
raw: somebody who says to it whatever they like
open_folder: the test's folder, passable for everybody
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.bed import AgentBed
from tests.agent.callers import Raw


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentBed]:
    bed = AgentBed(tmp_path)
    try:
        yield bed
    finally:
        bed.close()


@pytest.fixture
def raw(agent: AgentBed) -> Iterator[Raw]:
    agent.start()
    client = Raw(agent.socket)
    yield client
    client.close()


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """The test's folder, passable for everybody."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path
