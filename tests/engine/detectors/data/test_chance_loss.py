"""A loss that stands where guessing would have it from the first steps on; what comes down to it learns."""

from __future__ import annotations

import math

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.detectors.numeric.curves import Curve, Noise, Values
from tests.engine.detectors.numeric.training import Training, resume

NOISE = Noise(3)


def stands(k: int, noise: float = 0.002) -> Curve:
    """At ln(k), from the first step on."""
    return lambda rank, step: Values(math.log(k) * (1 + noise * NOISE(rank, step)))


def falls(k: int, after: int, rate: float) -> Curve:
    """At ln(k) until a step, then so much of it lower with each step."""
    curve = stands(k)

    def at(rank: int, step: int) -> Values:
        loss = curve(rank, step).loss
        assert loss is not None
        return Values(loss * max(0.2, 1 - rate * max(0, step - after)))

    return at


@pytest.mark.parametrize("k", [2, 10, 1000])
def test_a_model_that_does_not_learn(told: Told, k: int) -> None:
    told.running(ranks=4)
    training = Training(told).go(stands(k), 2100)
    assert training.remarks == [], "not yet"
    training.go(stands(k), 3000)
    (said,) = training.remarks
    assert f"ln({k})" in said and "overfit one batch" in said
    note = told.state.remarks["chance_loss"]
    assert (note.evidence["classes"], note.evidence["ranks"]) == (k, 4) and note.evidence["steps"][0] > 200
    assert told.incidents == {}


def test_one_that_begins_worse_and_gives_up(told: Told) -> None:
    told.running(ranks=2)

    def curve(rank: int, step: int) -> Values:
        return Values(math.log(10) + max(0.0, 3.0 - step / 40))

    assert len(Training(told, 2).go(curve, 4000).remarks) == 1


DECOYS: dict[str, Curve] = {
    "two classes, learned from step 400 on": falls(2, 400, 2e-5),
    "a slow warm-up, a thousand classes": falls(1000, 0, 4e-6),
    "a perplexity of ten, which is a good one": lambda rank, step: Values(
        math.log(10) + 8.0 * math.exp(-step / 200) + 0.001 * NOISE(rank, step)
    ),
    "a plateau at ten, of a language model that goes on from another one's weights": lambda rank, step: Values(
        math.log(10) + 0.05 * NOISE(rank, step // 100)
    ),
    "label smoothing and a penalty: it stands above ln(10)": lambda rank, step: Values(math.log(10) + 0.15),
    "no logarithm of a small number": lambda rank, step: Values(1.5),
    "ln(17), which any loss is near": stands(17),
    "it was better before": lambda rank, step: Values(math.log(2) * (0.9 if step < 100 else 1.0)),
    "one rank learns": lambda rank, step: falls(2, 400, 5e-5)(rank, step) if rank == 3 else stands(2)(rank, step),
    "a zero": lambda rank, step: Values(0.0),
    "a negative one": lambda rank, step: Values(-math.log(2)),
    "no loss is seen": lambda rank, step: Values(None, 1.0),
}


@pytest.mark.parametrize("name", DECOYS)
def test_what_looks_like_chance(told: Told, name: str) -> None:
    told.running(ranks=4)
    training = Training(told).go(DECOYS[name], 5000)
    assert training.remarks == [] and told.state.remarks == {}


def test_a_training_that_is_resumed_is_not_judged(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(stands(2), 1500)
    told.crashed()
    resume(told, 1500)
    Training(told, 2, step=1500).go(stands(2), 4000)
    assert told.state.remarks == {}


def test_a_script_that_loads_a_checkpoint_by_itself_is_not_judged(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(stands(10), 10)
    told.tell(ev.CheckpointLoaded(attempt=told.attempt, global_rank=0, path="/old/ckpt.pt", step=0))
    Training(told, 2, step=10).go(stands(10), 4000)
    assert told.state.remarks == {}


def test_nothing_is_said_of_losses_that_are_none(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(lambda rank, step: Values(math.nan if step == 900 else math.log(2)), 4000)
    assert told.state.remarks == {}
