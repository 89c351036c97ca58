"""What ranks have kept in memory, as the engine hears of it."""

from __future__ import annotations

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.voluntary.in_time import why_spoilt
from tests.engine.conftest import Told, kinds
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
