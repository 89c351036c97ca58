"""Reports, suspicion, looks: what is asked for when, and what ends a suspicion."""

from __future__ import annotations

from itertools import pairwise

import pytest

from guardrun.supervisor.engine.detectors.hang.suspicion import LOOK_TIMEOUT_S
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import Told, kinds
from tests.engine.detectors.hang.looks import look, report
from tests.sim import activity as act
from tests.sim.activity import Activity


def suspected(told: Told) -> ac.TakeLook:
    """Time passes without progress until the first look is asked for."""
    [action] = told.tick()
    assert isinstance(action, ac.TakeLook)
    return action


def test_silence_is_looked_at_after_the_floor(told: Told) -> None:
    told.running()
    asked = suspected(told)
    assert told.now_s == pytest.approx(12.0, abs=1e-3)
    assert (asked.attempt, asked.reason) == (0, "no progress for 10 s")


def test_half_a_minute_of_idling_while_others_wait(told: Told) -> None:
    told.running()
    suspected(told)
    assert look(told, act.WAITING, act.HANG, at_s=12.5) == []
    for at_s in (15.7, 24.0):
        assert kinds(told.tick()) == ["TakeLook"]
        assert look(told, act.WAITING, act.HANG, at_s=at_s) == []
    assert kinds(told.tick()) == ["TakeLook"]
    assert told.now_s == pytest.approx(32.1, abs=0.2)
    actions = look(told, act.WAITING, act.HANG, at_s=32.6)
    assert kinds(actions) == ["WriteIncident", "StopAttempt"]
    incident = told.incidents["001"]
    assert (incident.kind, incident.cause, incident.action) == ("hang", "rank_blocked", "restart")
    assert [c.rank for c in incident.culprits] == [1]
    assert incident.onset_s == pytest.approx(2.0, abs=0.6)
    assert incident.looks == ["looks/24.0", "looks/32.6"]
    assert incident.evidence["stack"][0] == "fetch_vocabulary_update (train.py:73)"


@pytest.mark.parametrize(("other", "from_s", "to_s"), [(act.HANG, 1790.0, 1900.0), (act.WAITING, 30.0, 60.0)])
def test_before_the_first_sign_of_training_only_who_holds_others_up_is_held_to_account(
    told: Told, other: Activity, from_s: float, to_s: float
) -> None:
    """A script may wait for data that another job prepares; not while others wait for it."""
    told.opened()
    told.started(at_s=1.0)
    while not told.incidents and told.now_s < 2000:
        if kinds(told.tick()) == ["TakeLook"]:
            look(told, act.HANG, other, at_s=told.now_s + 0.2)
    assert from_s < told.now_s < to_s
    assert [c.rank for c in told.incidents["001"].culprits] == ([0, 1] if other is act.HANG else [0])


def test_any_progress_ends_a_suspicion_and_the_stall_is_remembered(told: Told) -> None:
    told.running()
    suspected(told)
    for at_s in (12.5, 15.7):
        look(told, act.WAITING, act.HANG, at_s=at_s)
        told.tick()
    report(told, 0, 20.0, progress=11, progress_s=19.9)
    assert told.state.detectors.hang.suspicion is None
    assert told.state.detectors.hang.remembered == {"/home/user/train.py:fetch_vocabulary_update": pytest.approx(17.9)}
    assert look(told, act.WAITING, act.HANG, at_s=20.5) == [], "an answer that nobody waits for any more"


def test_a_report_of_another_attempt_says_nothing(told: Told) -> None:
    told.running()
    due_s = told.engine.next_deadline_s()
    told.step(50, 5.0, attempt=7)
    assert told.engine.next_deadline_s() == due_s


def test_a_look_that_does_not_come_is_asked_for_again_and_either_answer_counts(told: Told) -> None:
    told.running()
    first = suspected(told)
    assert told.engine.next_deadline_s() == pytest.approx(told.now_s + LOOK_TIMEOUT_S, abs=1e-3)
    [again] = told.tick()
    assert again == first
    look(told, act.WAITING, act.HANG, at_s=told.now_s + 1)
    assert told.state.detectors.hang.suspicion is not None and told.state.detectors.hang.suspicion.last
    assert look(told, act.WAITING, act.HANG, at_s=told.now_s + 1) == []


def test_somebody_busy_is_watched_with_growing_patience(told: Told) -> None:
    told.running()
    suspected(told)
    look(told, act.WAITING, act.SAVING, at_s=12.5)
    asked_s = []
    for _ in range(12):
        told.tick()
        asked_s.append(told.now_s)
        assert look(told, act.WAITING, act.SAVING, at_s=told.now_s + 0.5) == []
    gaps_s = [round(after - before, 3) for before, after in pairwise(asked_s)]
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[-1] == pytest.approx(60.6, abs=0.2)
    assert told.incidents == {}


def test_what_one_look_shows_and_the_next_does_not_is_no_hang(told: Told) -> None:
    computing = Activity("computing in one place", stacks=act.COMPUTING[:1], cpu=1.0)
    idle = Activity("idle there", stacks=act.COMPUTING[:1])
    told.running()
    suspected(told)
    while told.now_s < 200:  # long past all patience with a rank that idles
        look(told, computing, act.WAITING, at_s=told.now_s + 0.2)
        assert kinds(told.tick()) == ["TakeLook"]
    assert look(told, idle, act.WAITING, at_s=told.now_s + 0.2) == []
    assert kinds(told.tick()) == ["TakeLook"]
    assert look(told, computing, act.WAITING, at_s=told.now_s + 0.2) == []
    for expected in ([], ["WriteIncident", "StopAttempt"]):
        assert kinds(told.tick()) == ["TakeLook"]
        assert kinds(look(told, idle, act.WAITING, at_s=told.now_s + 0.2)) == expected


def test_a_stopped_process_is_acted_on_within_seconds(told: Told) -> None:
    told.running()
    report(told, 1, 5.0, state="T")
    assert suspected(told).reason == "a rank is stopped"
    assert told.now_s == pytest.approx(5.5, abs=1e-3)
    at_s = 5.6
    while told.phase is Phase.RUNNING:
        actions = look(told, act.WAITING, act.STOPPED, at_s=at_s)
        if told.phase is Phase.RUNNING:
            told.tick()
            at_s = told.now_s + 0.1
    assert kinds(actions) == ["WriteIncident", "StopAttempt"]
    assert told.now_s - 5.0 < 4.5
    assert told.incidents["001"].cause == "rank_stopped"


def test_a_process_that_goes_on_again_is_no_proof(told: Told) -> None:
    told.running()
    report(told, 1, 5.0, state="T")
    suspected(told)
    look(told, act.WAITING, act.STOPPED, at_s=5.6)
    report(told, 1, 6.0, state="S")
    told.tick()
    assert look(told, act.WAITING, act.HANG, at_s=6.2) == []
    assert told.state.detectors.hang.suspicion is None
    assert told.state.attempt is not None and told.state.attempt.stopped == {}


def test_what_others_did_beside_a_stopped_rank_ends_no_suspicion_afterwards(told: Told) -> None:
    told.running()
    report(told, 1, 5.0, state="T")
    suspected(told)
    report(told, 0, 5.8, progress=11, progress_s=5.7)
    report(told, 1, 6.0, state="S")
    assert told.state.detectors.hang.suspicion is not None, "nobody has advanced since it goes on"
    report(told, 0, 6.4, progress=12, progress_s=6.3)
    assert told.state.detectors.hang.suspicion is None


def test_a_look_sees_a_stopped_process_that_no_report_told_of(told: Told) -> None:
    told.running()
    suspected(told)
    look(told, act.WAITING, act.STOPPED, at_s=12.1)
    for _ in range(10):
        if told.phase is Phase.STOPPING:
            break
        told.tick()
        look(told, act.WAITING, act.STOPPED, at_s=told.now_s + 0.1)
    assert told.incidents["001"].cause == "rank_stopped"
    assert told.now_s < 17


def test_progress_of_a_stopped_rank_counts_its_stop_anew(told: Told) -> None:
    told.running()
    report(told, 1, 5.0, state="T")
    report(told, 1, 7.0, state="T", progress=11, progress_s=6.5)
    assert told.state.attempt is not None and told.state.attempt.stopped == {1: 7.0}


def test_a_rank_that_no_look_shows_is_not_judged_until_the_hard_limit(told: Told) -> None:
    told.running(hard_timeout_s=100)
    suspected(told)
    while told.phase is Phase.RUNNING:
        look(told, act.WAITING, at_s=told.now_s + 0.1, missing={1: "node unreachable"})
        if told.phase is Phase.RUNNING:
            told.tick()
    incident = told.incidents["001"]
    assert incident.cause == "unknown" and [c.rank for c in incident.culprits] == [1]
    assert "could not be looked at" in incident.summary
    assert told.now_s == pytest.approx(102, abs=12)


def test_a_hang_that_may_not_be_acted_on_is_told_once(told: Told) -> None:
    told.running(act=False)
    suspected(told)
    for _ in range(30):
        actions = look(told, act.WAITING, act.HANG, at_s=told.now_s + 0.1)
        assert "StopAttempt" not in kinds(actions)
        told.tick()
    assert list(told.incidents) == ["001"]
    assert told.incidents["001"].action == "none"
    incident, lost_s = told.incidents["001"], told.state.ledger.lost_s(told.now_s)
    assert (
        lost_s["detecting"] == pytest.approx(incident.detected_s - incident.onset_s, abs=0.01) and lost_s["other"] > 30
    )
    report(told, 0, told.now_s + 1, progress=99, progress_s=told.now_s + 0.9)
    assert told.incidents["001"].recovered_s is None, "the call that stands still has not come back"
    report(told, 1, told.now_s + 1, progress=99, progress_s=told.now_s + 0.9)
    assert told.incidents["001"].recovered_s is not None
    before_s = told.state.ledger.lost_s(told.now_s)
    assert told.state.ledger.lost_s(told.now_s + 50) == before_s, "it trains again"


def test_hooks_that_are_missing_are_said_once(told: Told) -> None:
    told.running()
    missing = ev.HooksMissing(attempt=0, global_ranks=[0, 1], reason="-E")
    [said] = told.tell(missing)
    assert isinstance(said, ac.Say) and "rank 0, 1 runs without hooks (-E)" in said.text
    assert told.tell(missing) == []


def test_no_watch_while_nobody_lives(told: Told) -> None:
    told.running()
    told.exits(0, 0)
    told.exits(1, 0)
    assert told.engine.next_deadline_s() is None


def gc_held(told: Told, rank: int = 1, step: int = 10, duration_s: float = 2.0) -> list[ac.Action]:
    """A rank tells of a collection, and does its next step."""
    told.tell(ev.GcHeld(attempt=0, global_rank=rank, duration_s=duration_s, generation=2, collected=5, step=step))
    return told.step(step + 1, told.now_s + 0.1, range(rank, rank + 1))


def test_a_collection_that_held_others_up(told: Told) -> None:
    told.running()
    told.now_s = 4.0
    assert kinds(gc_held(told)) == ["WriteIncident"]
    incident = told.incidents["001"]
    assert (incident.cause, incident.onset_s, incident.evidence["waiting"]) == ("gc_pause", 2.0, [0])
    gc_held(told, step=11)
    assert len(told.incidents) == 1 and len(told.incidents["001"].evidence["pauses"]) == 2
    gc_held(told, step=11, duration_s=4.0)
    assert [pause["duration_s"] for pause in told.incidents["001"].evidence["pauses"]] == [2.0, 4.0]


def test_collections_that_hold_nobody_up(told: Told) -> None:
    told.running()
    assert gc_held(told, step=0) == [], "at the start"
    told.step(12, 3.0, ranks=range(1))
    assert gc_held(told, step=11) == [], "the others have gone on"
    report(told, 0, 4.0, gc_since_s=3.9)
    report(told, 0, 5.0)
    told.now_s = 5.5
    assert gc_held(told, step=12, duration_s=1.7) == [], "the others collected too"


def test_a_collection_under_way_is_looked_at_after_five_seconds(told: Told) -> None:
    told.running()
    report(told, 1, 5.0, gc_since_s=4.6)
    assert suspected(told).reason == "a collection takes long"
    assert told.now_s == pytest.approx(9.6, abs=1e-3)
