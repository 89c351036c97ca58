"""Each detector of the list says what it finds, with advice, and where users and programs look for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from guardrun.supervisor.engine.detectors.all_detectors import Detectors
from guardrun.supervisor.engine.detectors.hang import hang
from guardrun.supervisor.engine.detectors.node_health import FELT, KINDS
from guardrun.supervisor.engine.failures import root_cause
from guardrun.supervisor.engine.failures.failure_patterns import PATTERNS
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.derived_events import TickBegan

OF_MANY = {
    "hang": {*(cause for cause, _ in hang._CAUSE.values()), "collective_timeout", "collective_mismatch", "init"},
    "rank_failure": {
        *(pattern.cause for pattern in PATTERNS),
        *root_cause._BY_SIGNAL.values(),
        "collective_mismatch",
        "exit_code",
        "killed",
        "unknown",
    },
    "numeric": {
        *("nan_loss", "loss_spike", "grad_explosion", "replica_divergence"),
        *("same_samples", "same_order", "uneven_loaders", "chance_loss", "dead_modules", "constant_batches"),
        "empty_batches",
    },
    "node_health": {*KINDS, *FELT.values(), "thermal"},
}
"""What detectors find that have more than one cause to name."""
PAGE = Path(__file__).parents[3] / "docs" / "incidents.md"


def test_those_that_have_a_deadline_are_woken_by_it() -> None:
    for name in Detectors.__struct_fields__:
        detector = getattr(Detectors(), name)
        assert hasattr(detector, "next_deadline_s") is not {ev.Ticked, TickBegan}.isdisjoint(detector.observes), name


@pytest.mark.parametrize("name", Detectors.__struct_fields__)
def test_what_it_finds_has_advice_and_is_in_the_docs(name: str) -> None:
    detector = sys.modules[type(getattr(Detectors(), name)).__module__]
    causes = OF_MANY.get(name) or {getattr(detector, "CAUSE", "")}
    assert all(causes), f"{detector.__file__} has no CAUSE"
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    for cause in sorted(causes):
        # A node's findings bring their advice along.
        assert advice_for(cause) or name == "node_health", (
            f"supervisor/engine/incidents/advice.py says nothing on {cause}"
        )
        assert any(f"`{cause}`" in row for row in rows), f"no table of docs/incidents.md has a row for {cause}"
