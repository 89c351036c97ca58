"""Recorder dumps of jobs that hang, and of such as only look so: who is named, and that nobody else is."""

from __future__ import annotations

import pytest

from tests.golden.cases.all_cases import DECOYS, FAULTS
from tests.golden.cases.case import Case
from tests.golden.hosts import verdict

ALL = [*FAULTS, *DECOYS]


def named(case: Case) -> str:
    return case.name


def test_faults_have_their_decoys_and_each_case_its_name() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
    assert len(DECOYS) * 4 >= len(FAULTS) * 3


@pytest.mark.parametrize("case", ALL, ids=named)
def test_the_verdict(case: Case) -> None:
    judged, sentence = verdict(case.job(), case.hosts, last=case.last)
    found = judged.found
    assert (found.cause if found else "", tuple(found.culprits if found else ())) == (case.cause, case.culprits), (
        sentence
    )
    assert case.says in sentence
    if found is not None:
        assert found.patience_s >= case.patience_s
