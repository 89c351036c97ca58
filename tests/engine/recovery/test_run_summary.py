"""What is told of a run's end, and of one whose supervisor was killed before it could tell."""

from __future__ import annotations

import signal

import pytest

from guardrun.supervisor.engine.recovery.run_summary import outcome_so_far, signal_name
from tests.engine.conftest import Told


def test_a_run_has_finished_once_every_rank_has_ended_well(told: Told) -> None:
    assert outcome_so_far(told.state) == ""
    told.running()
    assert outcome_so_far(told.state) == ""
    told.exits(0, 0, 20.0)
    assert outcome_so_far(told.state) == ""
    told.exits(1, 0, 20.1)
    assert outcome_so_far(told.state) == "finished"
    told.stopped()
    assert outcome_so_far(told.state) == told.state.outcome == "finished"


def test_a_run_that_is_being_stopped_has_no_outcome_yet(told: Told) -> None:
    told.running()
    told.exits(1, 1, 20.0)
    assert outcome_so_far(told.state) == ""


@pytest.mark.parametrize("signum, name", [(signal.SIGTERM, "SIGTERM"), (40, "signal 40")])
def test_signals_have_names(signum: int, name: str) -> None:
    assert signal_name(signum) == name
