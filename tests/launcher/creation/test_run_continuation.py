"""What is done with a run directory that is there already, by what an earlier guardrun left: every state of it."""

from __future__ import annotations

import pytest

from guardrun.launcher.creation.run_continuation import ENDED_OUTCOMES, Left, Way, decide

MADE = (".owner", "nccl", ".guardrun-0123456789abcdef")


@pytest.mark.parametrize("outcome", ["", "interrupted", "preempted", "running", *ENDED_OUTCOMES])
@pytest.mark.parametrize(
    ("names", "way"),
    [
        ((), Way.BEGIN),  # killed right after mkdir
        (MADE[:1], Way.BEGIN),
        (MADE, Way.BEGIN),  # killed while run.json was written
        (("train.py",), Way.REFUSE_STRANGE),
        (("nccl", "train.py"), Way.REFUSE_STRANGE),
        ((*MADE, "run.json"), Way.CONTINUE),  # killed before the journal's first line
        ((*MADE, "run.json", "events.jsonl"), Way.CONTINUE),
        ((*MADE, "run.json", "checkpoints.json", "kept"), Way.CONTINUE),  # the journal was lost
        ((*MADE, "events.jsonl"), Way.CONTINUE),  # run.json was
        ((*MADE, "torn run.json"), Way.CONTINUE),
        (("torn run.json",), Way.REFUSE_STRANGE),
        ((*MADE, "guardrun.log"), Way.CONTINUE),
        ((*MADE, "summary.0.json"), Way.CONTINUE),
    ],
)
def test_every_state(names: tuple[str, ...], way: Way, outcome: str) -> None:
    if way is Way.CONTINUE and outcome in ENDED_OUTCOMES:
        way = Way.REFUSE_ENDED
    assert decide(Left(frozenset(names), "run.json" in names, True, outcome)) is way


def test_a_folder_that_the_user_made_is_none_of_guardruns() -> None:
    assert decide(Left(frozenset(), False, False, "")) is Way.REFUSE_STRANGE


def test_a_run_that_only_wants_a_word_goes_on() -> None:
    assert decide(Left(frozenset({"run.json"}), True, True, "gave_up", may_go_on=True)) is Way.CONTINUE
