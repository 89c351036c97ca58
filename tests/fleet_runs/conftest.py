"""Jobs of several nodes on hosts with addresses of their own: fixture `job`, nothing of which outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet_runs.jobs import Job
from tests.runs.runs import check_replay
from tests.support import real
from tests.support.netlab import Lab

NAMES = ("head", "node1", "node2", "node3", "node4")


@pytest.fixture(scope="session")
def hosts() -> Iterator[Lab]:
    """Five hosts that all tests share."""
    if reason := real.missing("netns"):
        pytest.skip(f"real part netns: {reason}")
    with Lab.open(names=NAMES) as lab:
        yield lab


@pytest.fixture
def job(hosts: Lab, tmp_path: Path) -> Iterator[Job]:
    job = Job(hosts, tmp_path)
    try:
        yield job
    finally:
        job.close()
    for journal in (job.folder / "guardrun-runs").glob("*/events.jsonl"):
        if not journal.parent.is_symlink():
            check_replay(journal.parent)
