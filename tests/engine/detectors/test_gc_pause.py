"""Collections told afterwards: whom they held up."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told


@pytest.mark.parametrize(
    ("step", "waited"),
    [
        pytest.param(10, True, id="still in the step of the collection"),
        pytest.param(11, True, id="through it at once when it was over"),
        pytest.param(60, False, id="went on all the while"),
    ],
)
def test_who_was_held_up_is_told_by_where_everybody_is_when_it_is_over(told: Told, step: int, waited: bool) -> None:
    told.running()
    told.step(step, 4.1, range(1))
    told.tell(ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=10), 4.15)
    assert not told.incidents, "its step is not over yet"
    told.step(11, 5.0)
    incidents = [(i.cause, [c.rank for c in i.culprits], i.evidence["waiting"]) for i in told.incidents.values()]
    assert incidents == ([("gc_pause", [1], [0])] if waited else [])


def test_a_step_further_without_a_gap_is_no_wait(told: Told) -> None:
    told.running()
    told.step(10, 3.5, range(1))
    told.tell(
        ev.NodeReport(node="node-a", attempt=0, ranks=[ev.RankReport(global_rank=0, progress=11, progress_s=3.6)])
    )
    told.step(12, 4.1, range(1))
    told.tell(ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=11), 4.15)
    told.step(13, 5.0)
    assert not told.incidents


@pytest.mark.parametrize(("ends_s", "is_told"), [(21.0, True), (24.0, False)])
def test_a_second_here_and_there_in_a_long_piece_of_work_is_no_pause(told: Told, ends_s: float, is_told: bool) -> None:
    told.running()
    told.step(10, 3.0)
    told.tell(ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=10), 6.0)
    told.step(11, ends_s)
    assert [i.cause for i in told.incidents.values()] == ["gc_pause"] * is_told


@pytest.mark.parametrize(
    ("lasted_s", "again_s", "is_told"),
    [
        pytest.param(1.0, 0.0, False, id="a second of twenty"),
        pytest.param(5.0, 0.0, True, id="which waited for a core, as the rest of the step did"),
        pytest.param(1.0, 2.5, True, id="and more of it later"),
    ],
)
def test_the_whole_of_what_a_step_s_collections_took_counts(
    told: Told, lasted_s: float, again_s: float, is_told: bool
) -> None:
    told.running()
    told.step(10, 3.0)
    held = ev.GcHeld(
        attempt=0, global_rank=1, duration_s=1.0, lasted_s=lasted_s, generation=2, collected=9, step=10, tracked=70
    )
    told.tell(held, 6.0)
    if again_s:
        told.tell(msgspec.structs.replace(held, duration_s=again_s, lasted_s=again_s, tracked=-1), 12.0)
    told.step(11, 23.0)
    assert [i.cause for i in told.incidents.values()] == ["gc_pause"] * is_told
    for incident in told.incidents.values():
        (pause,) = incident.evidence["pauses"]
        assert (pause["duration_s"], pause["tracked"]) == (again_s or 1.0, 70)
        assert incident.onset_s == 5.0


def test_the_rank_that_went_on_before_it_could_tell(told: Told) -> None:
    told.running()
    told.step(10, 3.0)
    told.step(11, 5.5)
    told.tell(ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=10), 5.6)
    assert told.incidents["001"].evidence["waiting"] == [0]
    assert told.incidents["001"].step == 10


def test_a_good_end_right_after_it_is_past_it(told: Told) -> None:
    """No report comes any more that would show it."""
    told.running()
    told.step(10, 3.0)
    told.step(11, 5.5)
    told.tell(ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=10), 5.6)
    assert told.incidents["001"].recovered_s is None
    told.tell(ev.AttemptStopped(attempt=0, exitcodes={0: 0, 1: 0}, stopped_by_us=[]), 6.0)
    assert told.state.outcome == "finished"
    assert told.incidents["001"].recovered_s == 6.0


@pytest.mark.parametrize(
    ("tracked", "words"),
    [
        (3_000_000, "(generation 2, 3,000,009 objects, 9 of them collected)"),
        (-1, "(generation 2, 9 objects collected)"),
    ],
)
def test_it_says_how_many_objects_there_were(told: Told, tracked: int, words: str) -> None:
    told.running()
    told.step(10, 4.1, range(1))
    told.tell(
        ev.GcHeld(attempt=0, global_rank=1, duration_s=2.0, generation=2, collected=9, step=10, tracked=tracked), 4.15
    )
    told.step(11, 5.0)
    (incident,) = told.incidents.values()
    assert words in incident.summary
    assert incident.evidence["pauses"][0]["tracked"] == tracked
