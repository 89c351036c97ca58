"""Each detector of the list says what it finds, with advice, and where users and programs look for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.incidents.advice import advice_for

PAGE = Path(__file__).parents[3] / "docs" / "incidents.md"


@pytest.mark.parametrize("name", Detectors.__struct_fields__)
def test_what_it_finds_has_advice_and_is_in_the_docs(name: str) -> None:
    detector = sys.modules[type(getattr(Detectors(), name)).__module__]
    cause = getattr(detector, "CAUSE", "")
    assert cause, f"{detector.__file__} has no CAUSE"
    assert advice_for(cause), f"supervisor/engine/incidents/advice.py says nothing on {cause}"
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert any(f"`{cause}`" in row for row in rows), f"no table of docs/incidents.md has a row for {cause}"
