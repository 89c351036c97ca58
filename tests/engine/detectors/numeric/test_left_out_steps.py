"""Steps that guardrun left out: which, and whose gradients; no incident, unless they do not end."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.detectors.numeric.endless_skips import SKIPS
from guardrun.supervisor.engine.detectors.numeric.left_out_steps import MOST_REMARKS
from guardrun.supervisor.engine.observation.metric_window import BAD_GRADIENTS, FAR, LEFT_OUT
from tests.engine.conftest import Told
from tests.engine.detectors.numeric.curves import NAN, Curve, Values, instead, plain, without_norm
from tests.engine.detectors.numeric.training import Training, culprits, only

OWN = LEFT_OUT | BAD_GRADIENTS
HEALTHY = plain(1)


def reduced(*steps: int, rank: int = 1) -> Curve:
    """One rank's loss is NaN there, and the gradients of all are after their reduction."""
    return instead(
        HEALTHY,
        lambda of, at: Values(NAN if of == rank else 2.3, NAN, left_out=OWN) if at in steps else None,
    )


def test_a_step_of_reduced_gradients(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(reduced(812), 1500, lag_s=0.4)
    assert told.incidents == {}
    assert training.remarks == [
        'step 812 was left out on all 4 ranks ([guards] numeric = "skip"): the loss of rank 1 (batch 812) was not '
        "finite, and gradients were not finite on all 4 ranks"
    ]


def test_a_step_whose_norm_was_far_off(told: Told) -> None:
    told.running(ranks=2)
    curve = instead(HEALTHY, lambda of, at: Values(2.5, 61.25, left_out=LEFT_OUT | FAR) if at == 812 else None)
    training = Training(told, 2).go(curve, 1500)
    assert told.incidents == {}
    assert training.remarks == [
        'step 812 was left out on both ranks ([guards] numeric = "skip"): the gradient norm, 61.25, was far above '
        "those before"
    ]


def test_where_no_norm_is_ever_seen_one_bad_step_is_over_with_it(told: Told) -> None:
    """Nothing says that the norm is finite again: what is left out says nothing of the steps after it."""
    told.running(ranks=2)
    curve = instead(without_norm(HEALTHY), lambda of, at: Values(NAN, left_out=OWN) if at % 100 == 0 else None)
    training = Training(told, 2).go(curve, 8000)
    training.hear(told.exits(0, 0))
    assert told.incidents == {} and len(training.remarks) == MOST_REMARKS
    assert training.left_out == [80, 80]


def test_a_step_of_shards_names_the_rank_that_has_them(told: Told) -> None:
    """The others report it at their next turn, or later than it is waited for."""
    told.running(ranks=4)
    curve = instead(
        HEALTHY, lambda of, at: Values(2.3, None, left_out=OWN if of == 3 else LEFT_OUT) if at == 700 else None
    )
    training = Training(told, 4).go(curve, 1500, lag_s=0.4)
    assert told.incidents == {}
    assert training.remarks == [
        'step 700 was left out on all 4 ranks ([guards] numeric = "skip"): gradients were not finite on rank 3'
    ]


def test_one_rank_alone_is_told_as_such(told: Told) -> None:
    told.running(ranks=2)
    curve = instead(HEALTHY, lambda of, at: Values(2.3, NAN, left_out=OWN) if (of, at) == (1, 700) else None)
    training = Training(told, 2).go(curve, 1500)
    assert training.remarks == [
        'step 700 was left out on rank 1 ([guards] numeric = "skip"): gradients were not finite on rank 1; others are '
        "not known to have left it out"
    ]


def test_remarks_are_few(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(reduced(*range(300, 6000, 400)), 6000)
    assert told.incidents == {}
    assert len(training.remarks) == MOST_REMARKS
    assert training.remarks[-1].endswith("; further ones are only counted")
    assert training.left_out == [15, 15]


def test_bad_steps_in_a_row_that_end_are_no_incident(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(reduced(*range(500, 500 + SKIPS - 10)), 2000)
    assert told.incidents == {} and len(training.remarks) == 1


@pytest.mark.parametrize("bad", [Values(2.3, NAN, left_out=OWN), Values(NAN, left_out=OWN), Values(left_out=LEFT_OUT)])
def test_those_that_do_not_end_are_a_nan_loss(told: Told, bad: Values) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(instead(HEALTHY, lambda _, at: bad if at > 500 else None), 1000)
    incident = only(told)
    assert (incident.cause, incident.action, culprits(incident)) == ("nan_loss", "none", [])
    assert 400 <= (incident.step or 0) <= 600 and incident.detected_s - incident.onset_s < 12
    assert incident.summary.startswith("guardrun has left out ") and incident.evidence["by_guardrun"] >= SKIPS
    training.go(HEALTHY, 2000)
    assert only(told).recovered_s is not None


def test_what_is_not_left_out_is_told_as_ever(told: Told) -> None:
    """An optimizer that it has no hold of."""
    told.running(ranks=2)
    Training(told, 2).go(instead(HEALTHY, lambda _, at: Values(NAN, NAN) if at >= 500 else None), 700)
    assert "left out" not in only(told).summary
