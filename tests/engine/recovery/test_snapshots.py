"""What ranks have kept in memory, as the engine hears of it."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.voluntary.in_time import why_spoilt
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.recovery.falling import end_crash, numeric, training

WRITTEN = ev.SnapshotWritten(step=12, path="/out/step_12.pt", files=1, size_bytes=10, took_s=0.25)
NEWEST = ev.Checkpoint(path="/out/step_12.pt", step=12)


def crash(told: Told) -> None:
    training(told, saving=())
    told.exits(0, -9, 6.0)
    assert "ChooseCheckpoint" in kinds(end_crash(told))


def test_what_was_written_out_is_said_and_stands_in_the_incident(told: Told) -> None:
    crash(told)
    assert why_spoilt(told.state) == ""
    actions = told.chosen(NEWEST, snapshot=WRITTEN)
    said = [one.text for one in actions if isinstance(one, ac.Say)]
    assert "wrote the snapshot of step 12 from memory in 0.2 s: /out/step_12.pt" in said
    [incident] = [one.incident for one in actions if isinstance(one, ac.WriteIncident)]
    assert incident.evidence["snapshot"] == {
        "step": 12, "path": "/out/step_12.pt", "files": 1, "size_bytes": 10, "took_s": 0.25,
    }  # fmt: skip
    assert incident.resumed_from == NEWEST


def test_that_nothing_was_written_is_said_as_well(told: Told) -> None:
    crash(told)
    actions = told.chosen(None, snapshot=ev.SnapshotWritten(why="no copy of step 5 is known of rank 1"))
    said = [(one.level, one.text) for one in actions if isinstance(one, ac.Say)]
    assert ("warn", "what hooks.snapshot() kept was not written out: no copy of step 5 is known of rank 1") in said


def test_what_was_trained_wrong_is_not_gone_on_with(told: Told) -> None:
    told = told.branch()  # whose state is changed by hand here, which no replay would do
    training(told, saving=())
    numeric(told)
    told.exits(0, -9, 6.0)
    end_crash(told)
    assert why_spoilt(told.state) == "what is trained is spoilt (nan_loss)"


# A copy of what a script has saved -----------------------------------------------------------------------------------

COPY = ev.SnapshotWritten(step=8, path="/out/a.guardrun.pt", files=1, size_bytes=10, original="/out/a.pt")
COPIED = ev.Checkpoint(path="/out/a.guardrun.pt", step=8)


def resumed_from_copy(told: Told, **settings: object) -> list[ac.Action]:
    """A crash; the only checkpoint is torn, and its copy is what the next attempt, which runs, resumes from."""
    told.running(resumes=True, **settings)
    told.crashed()
    actions = told.chosen(COPIED, snapshot=COPY, kept="/run/kept/a.guardrun.pt")
    told.started(1, at_s=told.now_s + 0.5)
    return actions


def test_a_copy_is_told_as_one(told: Told) -> None:
    actions = resumed_from_copy(told)
    said = [one.text for one in actions if isinstance(one, ac.Say)]
    assert "wrote the copy of /out/a.pt from memory in 0.0 s: /out/a.guardrun.pt" in said
    assert told.incidents["001"].evidence["snapshot"]["original"] == "/out/a.pt"


def test_one_that_could_not_be_written_is_told(told: Told) -> None:
    told.running()
    told.crashed()
    actions = told.chosen(None, snapshot=ev.SnapshotWritten(original="/out/a.pt", why="the disk is too slow"))
    said = [(one.level, one.text) for one in actions if isinstance(one, ac.Say)]
    assert ("warn", "the copy of /out/a.pt that was kept in memory was not written out: the disk is too slow") in said


@pytest.mark.parametrize("error", [ERROR, None])
def test_a_script_that_ends_over_a_copy_goes_on_as_if_there_were_none(told: Told, error: ev.ErrorRecord | None) -> None:
    """It wants what belongs to the original's name. The restart is not its own fault, and costs no budget."""
    resumed_from_copy(told, max_restarts=1)
    actions = told.crashed(exitcode=1, error=error)
    [order] = [one for one in actions if isinstance(one, ac.ChooseCheckpoint)]
    assert order.avoid == ["/out/a.guardrun.pt", "/run/kept/a.guardrun.pt"] and told.state.restarts == 1
    assert kinds(told.chosen(None))[-1] == "StartAttempt"
    told.started(2, at_s=told.now_s + 0.5)
    summary = [one.summary for one in told.crashed() if isinstance(one, ac.FinishRun)]
    assert summary and summary[0].restarts == 1, "the next one counts"


def test_what_kills_a_rank_says_nothing_of_the_copy(told: Told) -> None:
    resumed_from_copy(told)
    [order] = [one for one in told.crashed(exitcode=-9) if isinstance(one, ac.ChooseCheckpoint)]
    assert order.avoid == [] and told.state.restarts == 2


def test_who_has_got_further_had_what_it_wanted(told: Told) -> None:
    resumed_from_copy(told)
    told.step(11, told.now_s + 5.0)
    [order] = [one for one in told.crashed(exitcode=1, error=ERROR) if isinstance(one, ac.ChooseCheckpoint)]
    assert order.avoid == [] and told.state.restarts == 2


def test_a_checkpoint_that_is_none_of_these_is_none(told: Told) -> None:
    told.running(resumes=True)
    told.crashed()
    told.chosen(COPIED)
    told.started(1, at_s=told.now_s + 0.5)
    [order] = [one for one in told.crashed(exitcode=1, error=ERROR) if isinstance(one, ac.ChooseCheckpoint)]
    assert order.avoid == [] and told.state.restarts == 2
