"""Whether samples come twice after a resume: told once all ranks have said so, and written where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import data_replay
from guardrun.supervisor.engine.recovery.data_replay import ADVICE, MAX_LOADERS
from tests.engine.conftest import Told

SAVED = ev.Checkpoint(path="/out/a.pt", step=8)


def resumed(told: Told, **settings: object) -> None:
    """The second attempt of two ranks runs."""
    told.running(resumes=True, **settings)
    told.crashed()
    told.restarted(9, SAVED)


def replayed(told: Told, status: str = "repeated", rank: int | None = None, **more: Any) -> list[str]:
    """What is said once one rank, or all, have told of a loader."""
    fields = {"loader": "a", "epoch": 3, "batches": 8, "samples": 32, "repeated": 0, "left_out": 0, "passed_over": 0}
    fields |= {"attempt": told.attempt, "status": status, **more}
    actions = [
        action
        for one in ([0, 1] if rank is None else [rank])
        for action in told.tell(ev.DataReplayed(global_rank=one, **fields))
    ]
    return [action.text for action in actions if isinstance(action, ac.Say)]


def test_it_is_told_once_all_ranks_have_and_stands_in_the_incident(told: Told) -> None:
    resumed(told)
    assert replayed(told, rank=0, repeated=32) == []
    said = "64 samples of epoch 3 that the checkpoint holds are trained on again."
    assert replayed(told, rank=1, repeated=32) == [f"{said} {ADVICE}"]
    found = told.incidents["001"].evidence["data_replay"]
    assert (found["status"], found["samples"], found["repeated"], found["epoch"], found["said"]) == (
        "repeated", 64, 64, 3, said,
    )  # fmt: skip
    note = told.state.remarks["data_replay"]
    assert note.text == f"After the resume of attempt 1: {said}" and note.attempt == 1
    told.crashed()
    assert told.state.attempts[1]["data_replay"] == found and "data_replay" not in told.state.attempts[0]
    told.restarted(9, SAVED)
    assert replayed(told, repeated=32) == [], "that it comes again and again is no news"
    assert told.incidents["002"].evidence["data_replay"] == found


@pytest.mark.parametrize(
    ("status", "more", "said"),
    [
        ("skipped", {}, "The 64 samples of epoch 3 that the checkpoint holds are not trained on again."),
        ("continued", {}, None),
        ("repeated", {"repeated": 1, "why": "so"}, "2 samples of epoch 3 that the checkpoint holds are trained on "),
        ("left_out", {"left_out": 4}, "8 samples of epoch 3 are not trained on: the script goes on further than "),
        ("reordered", {"epoch": -1}, "Samples come in another order than before the checkpoint"),
        ("unknown", {"why": "so"}, "Whether samples are trained on twice, or not at all, since the checkpoint is not "),
        ("unheard-of", {}, None),
    ],
)
def test_what_is_said(status: str, more: dict[str, Any], said: str | None, told: Told) -> None:
    resumed(told, exact_data=True)
    found = replayed(told, status, **more)
    assert [text[: len(said)] for text in found] == [said] if said else not found
    assert all(ADVICE not in text for text in found)
    if status == "repeated":
        assert found[0].endswith("They are not skipped: so.")
    assert ("data_replay" in told.incidents["001"].evidence) is (status != "unheard-of")


def test_a_script_that_skips_by_itself_too_is_said_once(told: Told) -> None:
    resumed(told, exact_data=True)
    assert len(replayed(told, "skipped")) == 1
    assert replayed(told, "skipped", passed_over=8) == []
    found = told.incidents["001"].evidence["data_replay"]
    assert found["passed_over"] == 8 and found["said"].endswith("as the script skips by itself.")


def test_of_several_loaders_the_worst_counts(told: Told) -> None:
    resumed(told, exact_data=True)
    replayed(told, "skipped")
    replayed(told, "repeated", loader="b", repeated=5)
    found = told.incidents["001"].evidence["data_replay"]
    assert (found["status"], found["repeated"]) == ("repeated", 10)
    assert [(one["loader"], one["status"]) for one in found["loaders"]] == [("a", "skipped"), ("b", "repeated")]
    for number in range(2 * MAX_LOADERS):
        replayed(told, "skipped", loader=f"more {number}")
    assert len(told.incidents["001"].evidence["data_replay"]["loaders"]) == MAX_LOADERS


def test_what_others_say_is_passed_over(told: Told) -> None:
    resumed(told)
    for more in ({"rank": 7}, {"attempt": 0}):
        assert replayed(told, **more) == []  # type: ignore[arg-type]
    assert told.state.attempt is not None and told.state.attempt.replays == {}


@pytest.mark.parametrize("most", [3, 4])
def test_where_nothing_can_be_skipped_it_is_said_once(told: Told, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(data_replay, "MAX_RANKS", most)
    told.fleet_opened(2, exact_data=True, resumes=True)
    told.fleet_started(1.0)
    told.step(10, 2.0, range(4))
    assert told.state.attempt is not None
    said = []
    for attempt in (1, 2):
        told.begin_with(next_attempt=attempt, checkpoint=SAVED, phase=Phase.STARTING)
        said += [action.text for action in told.fleet_started() if isinstance(action, ac.Say)]
    why = "[checkpoint] exact_data does nothing here: it is for jobs of 3 ranks at most"
    assert said == ([why] if most == 3 else [])
