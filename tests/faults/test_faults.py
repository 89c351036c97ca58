"""Each row of the table of faults, played: `make soak` all of them, `make test` those that stand for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.bed import Bed
from tests.faults.page import PROPERTY
from tests.faults.row import BedStory, JobStory, Row
from tests.faults.table import SAMPLE, TABLE
from tests.fleet_runs.jobs import Job


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_soak = metafunc.config.getoption("--hypothesis-profile") == "soak"
    of_several = "job" in metafunc.fixturenames
    rows = [row for row in (TABLE if is_soak else SAMPLE) if row.is_of_several_nodes is of_several]
    metafunc.parametrize(("story", "name"), [_param(row) for row in rows])


def _param(row: Row) -> Any:
    return pytest.param(row.story, row.name, id=row.name, marks=[pytest.mark.real(part) for part in row.real])


def keep(request: pytest.FixtureRequest, name: str, seen: str, messages: int) -> None:
    """For whoever writes the page, who may be another process."""
    request.node.user_properties.append((PROPERTY, {"name": name, "seen": seen, "messages": messages}))


def test_training_survives(story: BedStory, name: str, bed: Bed, request: pytest.FixtureRequest) -> None:
    """Long in some rows: a supervisor that is stopped is given up after a while."""
    seen = story(bed)
    keep(request, name, seen, bed.messages)


def test_training_on_several_nodes_survives(
    story: JobStory, name: str, job: Job, request: pytest.FixtureRequest
) -> None:
    """Long in some rows: contact is lost for a while, a lease has to end."""
    seen = story(job)
    keep(request, name, seen, 0)
