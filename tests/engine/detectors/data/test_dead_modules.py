"""A module that has died is told once, with the rank that saw it first; what no hook says is left alone."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import ERROR, Told


def died(attempt: int = 0, **fields: object) -> ev.ModulesDied:
    usual = {"global_rank": 1, "step": 900, "since": 410, "what": "output", "modules": ["body.3 (ReLU)"], "count": 1}
    made: dict[str, object] = {**usual, "looks": 50, "every": 10, "alive": 40, "attempt": attempt, **fields}
    return ev.ModulesDied(**made)  # type: ignore[arg-type]


def said(actions: list[ac.Action]) -> list[str]:
    """No note ever acts."""
    assert all(isinstance(action, ac.Say) for action in actions)
    return [action.text for action in actions if isinstance(action, ac.Say)]


def test_it_is_told_once_a_run(told: Told) -> None:
    told.running(ranks=2)
    (text,) = said(told.tell(died()))
    assert text.startswith(
        "note: the output of body.3 (ReLU) has been all zeros on rank 1 since step 410, at each of 50 looks, one in 10 "
        "steps; at 40 looks before it was not. "
    )
    assert "ReLU negative" in text
    assert said(told.tell(died(global_rank=0))) == []
    (note,) = told.engine.summary(told.now_s).notes
    assert note["topic"] == "dead_modules" and note["evidence"]["since_step"] == 410 and told.incidents == {}
    told.crashed(error=ERROR)
    told.restarted()
    assert said(told.tell(died(attempt=1))) == []


@pytest.mark.parametrize(("count", "words"), [(2, "(and of another module)"), (7, "(and of 6 other modules)")])
def test_how_many_there_are(told: Told, count: int, words: str) -> None:
    told.running(ranks=2)
    (text,) = said(told.tell(died(what="gradient", count=count)))
    assert f"the gradient of the output of body.3 (ReLU) {words} has been" in text


@pytest.mark.parametrize("fields", [{"global_rank": 7}, {"modules": []}, {"what": "fate"}, {"attempt": 3}])
def test_what_no_hook_says_is_left_alone(told: Told, fields: dict[str, object]) -> None:
    told.running(ranks=2)
    assert said(told.tell(died(**fields))) == []  # type: ignore[arg-type]
    assert told.engine.summary(told.now_s).notes == []


def test_a_model_that_is_given_nothing(told: Told) -> None:
    told.running(ranks=2)
    (text,) = said(told.tell(died(what="input", modules=["Net"], since=10, step=500, alive=0)))
    assert text.startswith(
        "note: each batch that the model (Net) was given on rank 1 has been one number all over, at each of 50 looks, "
        "one in 10 steps, since step 10. See what the dataset returns"
    )
    assert said(told.tell(died(what="input", modules=["Net"]))) == []
    assert len(said(told.tell(died()))) == 1, "the other note is another one"
    (text,) = said(told.tell(died(what="empty", modules=["Net"], since=20, step=510, alive=0)))
    assert text.startswith(
        "note: each batch that the model (Net) was given on rank 1 has been without a single sample, at each of 50 "
        "looks, one in 10 steps, since step 20. That rank adds nothing"
    )
    assert said(told.tell(died(what="empty", modules=["Net"], global_rank=0))) == []
    topics = [note["topic"] for note in told.engine.summary(told.now_s).notes]
    assert topics == ["constant_batches", "dead_modules", "empty_batches"]
