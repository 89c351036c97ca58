"""torch's own analyser, over the same dumps, says the same of who is missing and what doesn't match.

Where it doesn't, the case says why; a reason that is none any more fails.
"""

from __future__ import annotations

import logging

import pytest

from guardrun.supervisor.engine.model.looks import Call, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.collective_calls import is_point_to_point
from guardrun.supervisor.engine.observation.collective_waits import SIDES, match
from tests.golden.cases.all_cases import DECOYS, FAULTS
from tests.golden.cases.case import Case
from tests.golden.hosts import HOSTS, groups_of
from tests.golden.oracle import Problem, analyse


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """It tells its findings in lines of its log."""
    logging.getLogger("Flight Recorder").setLevel(logging.CRITICAL)


def guardruns(case: Case) -> list[Problem]:
    """The same of what guardrun puts together: of each group the first."""
    job = case.job()
    looks = []
    for rank in range(case.ranks):
        groups = groups_of(job, rank, HOSTS[case.hosts.get(rank, "sync")])
        looks.append(RankLook(global_rank=rank, at_s=1.0, process=ProcessLook(pid=1 + rank), groups=groups))
    found = match(looks)
    problems = {
        wait.group: Problem(wait.group, wait.seq, tuple(wait.waits_for))
        for wait in found.waits
        if wait.waits_for and not is_point_to_point(Call(wait.seq, wait.op))
    }
    if found.mismatch is not None and found.mismatch.form == SIDES:
        side = found.mismatch.sides[0]
        problems[side.group] = Problem(side.group, side.call.seq)
    return sorted(problems.values())


@pytest.mark.parametrize("case", [*FAULTS, *DECOYS], ids=lambda case: case.name)
def test_torchs_analyser_says_the_same(case: Case) -> None:
    read = {rank for rank in range(case.ranks) if HOSTS[case.hosts.get(rank, "sync")].is_read}
    torchs, ours = analyse(case.job(), read), guardruns(case)
    assert (torchs == ours) == (not case.unlike), (torchs, ours)
