"""The same place twice, in one run and across runs."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.state.incidents import ordinal, place_of
from tests.engine.conftest import ERROR, Told, kinds

PLACE = "exception ValueError in train (train.py)"


def past(runs: int = 3, place: str = PLACE) -> ev.HistoryLoaded:
    return ev.HistoryLoaded(places=[ev.PastPlace(place=place, runs=runs, last="2026-11-20")])


def test_the_second_time_is_said(told: Told) -> None:
    told.running()
    told.crashed(1, ERROR)
    first = told.incidents["001"]
    assert first.evidence["place"] == PLACE and "recurrence" not in first.evidence
    assert first.summary.endswith("at step 10.")
    told.restarted(20)
    actions = told.crashed(1, ERROR)
    second = told.incidents["002"]
    assert second.summary.endswith("at step 20; the 2nd time at this place in this run.")
    assert second.evidence["recurrence"] == {
        "in_run": 2,
        "earlier": ["001"],
        "said": "the 2nd time at this place in this run",
    }
    told.restarted(30)
    assert actions
    told.crashed(1, ERROR)
    assert told.incidents["003"].evidence["recurrence"]["earlier"] == ["001", "002"]
    assert told.incidents["002"].summary.count("2nd time") == 1, "written again with the checkpoint, said once"


def test_a_signal_has_a_rank_for_its_place(told: Told) -> None:
    told.running(4)
    told.crashed(-11, rank=2)
    told.restarted(20)
    told.crashed(-11, rank=3)
    assert "recurrence" not in told.incidents["002"].evidence
    told.restarted(30)
    told.crashed(-11, rank=2)
    assert told.incidents["003"].summary.endswith("; the 2nd time on this rank in this run.")


def test_earlier_runs(told: Told) -> None:
    told.running()
    assert told.tell(past()) == []
    told.crashed(1, ERROR)
    incident = told.incidents["001"]
    assert incident.summary.endswith("at step 10; seen in 3 earlier runs, last on 2026-11-20.")
    assert incident.evidence["recurrence"]["earlier_runs"] == 3


def test_earlier_runs_that_are_read_late(told: Told) -> None:
    told.running()
    told.crashed(1, ERROR)
    assert kinds(told.tell(past(1))) == ["WriteIncident"]
    assert told.incidents["001"].summary.endswith("; seen in 1 earlier run, last on 2026-11-20.")
    assert told.tell(past(1)) == [], "told already"


def test_only_places_in_code_are_looked_up(told: Told) -> None:
    told.running()
    told.tell(past(place="segfault on rank 1"))
    told.crashed(-11)
    assert "recurrence" not in told.incidents["001"].evidence


@pytest.mark.parametrize(
    ("cause", "ranks", "evidence", "place"),
    [
        (
            "rank_blocked",
            [1],
            {"ranks": [{"rank": 1, "at": "fetch (train.py:73)"}]},
            "rank_blocked in fetch (train.py)",
        ),
        ("rank_blocked", [1], {"ranks": [{"rank": 0, "at": "f (a.py:1)"}]}, "rank_blocked on rank 1"),
        ("exception", [0], {"spot": "f (a.py)", "error": "my.Error"}, "exception Error in f (a.py)"),
        ("segfault", [3, 5], {}, "segfault on rank 3"),
        ("collective_timeout", [], {}, ""),
    ],
)
def test_places(cause: str, ranks: list[int], evidence: dict[str, object], place: str) -> None:
    assert place_of(cause, ranks, evidence) == place


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "111th",
    ]  # fmt: skip


# A checkpoint that could not be loaded -------------------------------------------------------------------------------

CORRUPT = ev.ErrorRecord(
    error="RuntimeError",
    message="PytorchStreamReader failed reading zip archive",
    traceback='File "/x/site-packages/torch/serialization.py", line 2, in load',
)
CHECKPOINT = ev.Checkpoint(path="/out/ckpt_10.pt", step=10)


def fails_to_load(told: Told) -> list[object]:
    """An attempt that ends in loading what it was given."""
    told.tell(ev.UncaughtExceptionReported(attempt=told.attempt, global_rank=0, error=CORRUPT))
    told.exits(0, 1)
    told.tick()
    traces = [{"global_rank": 0, "failed_load": "/out/ckpt_10.pt"}]
    told.read(told.now_s + 0.1, traces=traces)
    actions = told.stopped(told.now_s + 1)
    return list(told.read(told.now_s + 0.1, traces=traces) if "ReadExits" in kinds(actions) else actions)


def test_a_checkpoint_that_could_not_be_loaded_is_avoided(told: Told) -> None:
    told.running()
    told.crashed(-11)
    told.chosen(CHECKPOINT)
    told.started(1, at_s=told.now_s + 1)
    actions = fails_to_load(told)
    incident = told.incidents["002"]
    assert incident.cause == "checkpoint_corrupt"
    assert incident.summary.endswith("; it was loading /out/ckpt_10.pt.")
    assert incident.evidence["checkpoint"] == "/out/ckpt_10.pt"
    assert told.state.avoid == ["/out/ckpt_10.pt"]
    assert [a.avoid for a in actions if type(a).__name__ == "ChooseCheckpoint"] == [["/out/ckpt_10.pt"]]  # type: ignore[attr-defined]
    told.chosen(None)
    told.started(2, at_s=told.now_s + 1)
    told.step(11, told.now_s + 1)
    told.tell(ev.CheckpointSaved(attempt=2, global_rank=0, path="/out/ckpt_10.pt", step=10, duration_s=0.1))
    assert told.state.avoid == [], "written anew"


def test_a_script_that_loads_the_torn_one_again_is_not_tried_a_third_time(told: Told) -> None:
    told.running()
    told.crashed(-11)
    told.chosen(CHECKPOINT)
    told.started(1, at_s=told.now_s + 1)
    fails_to_load(told)
    told.chosen(None)
    told.started(2, at_s=told.now_s + 1)
    actions = fails_to_load(told)
    assert "FinishRun" in [type(action).__name__ for action in actions]
    assert "whatever guardrun chooses" in told.incidents["003"].advice
    assert told.incidents["003"].action == "give_up"


# The step that stops the run every time ------------------------------------------------------------------------------


def test_poison_says_which_data(told: Told) -> None:
    told.running(max_no_progress=2, max_restarts=9)
    data = {"batch": 11, "epoch": 0, "indices": [44, 45, 46, 47]}
    for attempt in range(3):
        error = ev.ErrorRecord(error="ValueError", message="abc"[attempt], data=data)
        told.crashed(1, error)
        if attempt < 2:
            told.restarted(10)
    incident = told.incidents["003"]
    assert incident.cause == "poison_step"
    assert "at batch 11 since the attempt's start in epoch 0 (samples 44-47 of the data set) so:" in incident.summary
    assert [stop["batch"] for stop in incident.evidence["stops"]] == [11, 11, 11]
    assert "skip batch 11" in incident.advice and "44-47" in incident.advice


def test_poison_says_which_data_for_hangs_too(told: Told) -> None:
    told.running(max_no_progress=2, max_restarts=9)
    batch = {"batch": 11, "epoch": 0, "indices": [44, 45, 46, 47]}
    for attempt in range(3):
        while "StopAttempt" not in kinds(stand(told, batch)):
            pass
        told.stopped()
        if attempt < 2:
            told.restarted(10)
    incident = told.incidents["003"]
    assert (incident.cause, incident.evidence["own_cause"]) == ("poison_step", "rank_blocked")
    assert "at batch 11 since the attempt's start in epoch 0 (samples 44-47 of the data set) so:" in incident.summary
    assert "skip batch 11" in incident.advice


def stand(told: Told, batch: dict[str, Any]) -> list[ac.Action]:
    """Answer the next look: rank 0 stands in one frame at a batch, rank 1 waits for it."""
    told.tick()
    thread = ThreadLook(tid=7, is_main=True, frames=[Frame("load", "/home/me/train.py", 7)])
    pids = [rank.rank.pid for rank in told.state.attempt.ranks.values()] if told.state.attempt else []
    processes = [ProcessLook(pid=pid, state="S", threads=[thread]) for pid in pids]
    looks = [
        RankLook(global_rank=0, at_s=told.now_s, process=processes[0], batch=batch),
        RankLook(global_rank=1, at_s=told.now_s, process=processes[1], in_collective="all_reduce"),
    ]
    return told.tell(
        ev.LookTaken(look=told.state.detectors.hang.look, attempt=told.attempt, ranks=looks), told.now_s + 0.1
    )
