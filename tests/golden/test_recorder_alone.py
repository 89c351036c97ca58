"""The same jobs by their recorders alone, without the hooks' calls: nobody else is named, though less may be known."""

from __future__ import annotations

import pytest

from tests.golden.cases.all_cases import DECOYS, FAULTS
from tests.golden.cases.case import BLIND, Case
from tests.golden.hosts import verdict

TOLD = [case for case in [*FAULTS, *DECOYS] if case.alone != BLIND]


@pytest.mark.parametrize("case", TOLD, ids=lambda case: case.name)
def test_the_recorder_alone_names_nobody_else(case: Case) -> None:
    judged, sentence = verdict(case.job(), case.hosts, has_page=False, last=case.last)
    found = judged.found
    cause, culprits = (found.cause, tuple(found.culprits)) if found else ("", ())
    if case.alone is None:
        assert (cause, culprits) == (case.cause, case.culprits), sentence
    else:
        assert cause == case.alone, sentence
        assert culprits in (case.culprits, ())
    if found is not None and not case.culprits:
        assert found.patience_s >= case.patience_s
