"""Tell early, act when sure: what is said of a stall when, when it becomes an incident, and what is left alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.hang_patience import patience
from guardrun.supervisor.engine.model.looks import Call, GroupLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import without_stall
from tests.engine.conftest import Told, kinds
from tests.engine.detectors.hang.looks import look, pass_time, report
from tests.sim import activity as act
from tests.sim.activity import Activity

NORMAL: dict[str, Any] = {"tell_s": 15.0, "is_sure": True, **patience("normal")}
EAGER = {**NORMAL, "is_sure": False, **patience("eager")}
PATIENT = {**NORMAL, **patience("patient")}
POLLING = Activity("polling", "rank_blocked", act.HANG.stacks, wakes=0.2)
PLACE = "fetch_vocabulary_update (train.py)"


def said(actions: list[ac.Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, ac.Say)]


def hang_again(told: Told, *doings: Activity) -> float:
    """The next attempt stops at the same step: for how long it was let be."""
    told.stopped(told.now_s + 1.0)
    told.restarted()
    began_s, known = told.now_s, len(told.incidents)
    pass_time(told, *doings, until_s=began_s + 4000.0, is_enough=lambda: len(told.incidents) > known)
    return told.now_s - began_s


def test_a_stall_is_told_early_and_acted_on_when_patience_is_over(told: Told) -> None:
    told.running(**NORMAL)
    early = pass_time(told, act.WAITING, act.HANG, until_s=25.0)
    [line] = said(early)
    assert re.fullmatch(
        r"stall: Rank 1 on node-a has waited 1[5-7] s in fetch_vocabulary_update \(train\.py:73\); rank 0 waits for it "
        r"in all_reduce\. guardrun acts in 28[3-5] s; guardctl restart acts now, guardctl hold never\.",
        line,
    )
    assert told.incidents == {}
    stall = told.state.detectors.hang.suspicion and told.state.detectors.hang.suspicion.stall
    assert stall is not None
    assert (stall.culprits, stall.told_s) == ([1], pytest.approx(17.5, abs=1.5))
    actions = pass_time(told, act.WAITING, act.HANG, until_s=2000.0)
    assert told.now_s == pytest.approx(302.0, abs=2.0)
    assert kinds(actions)[-2:] == ["WriteIncident", "StopAttempt"]
    assert [text for text in said(actions) if "stall" in text] == []
    incident = told.incidents["001"]
    assert (incident.action, incident.cause) == ("restart", "rank_blocked")
    assert incident.detected_s == stall.told_s
    assert incident.acted_s == pytest.approx(told.now_s)
    assert incident.looks[:2] == stall.looks and len(incident.looks) == 4
    assert told.state.detectors.hang.stalls == []


def test_one_that_ends_by_itself_is_withdrawn_noted_and_gets_more_patience(told: Told) -> None:
    told.running(**NORMAL)
    for step in range(40):
        told.step(11 + step, 3.0 + step)
    pass_time(told, act.WAITING, act.HANG, until_s=272.0)
    over = told.step(60, 272.5)
    [line] = said(over)
    assert line == "stall over: Rank 1 on node-a goes on, after 230 s in fetch_vocabulary_update (train.py:73)"
    [noted] = told.engine.summary(told.now_s).stalls
    assert (noted["place"], noted["who"]) == (PLACE, [{"rank": 1, "node": "node-a"}])
    assert noted["seconds"] == pytest.approx(230, abs=1)
    began_s = told.now_s
    actions = pass_time(told, act.WAITING, act.HANG, until_s=3000.0)
    assert [text for text in said(actions) if text.startswith("stall:")] == [], "each place is told once a run"
    assert told.now_s - began_s == pytest.approx(460, abs=10), "twice what it once took"


def test_a_stall_of_an_earlier_run_counts_like_one_of_this_run(told: Told) -> None:
    told.running(**NORMAL)
    told.tell(ev.HistoryLoaded(places=[], stalls={PLACE: 500.0}))
    pass_time(told, act.WAITING, act.HANG, until_s=3000.0)
    assert told.now_s == pytest.approx(1000, abs=15)


@pytest.mark.parametrize(
    ("settings", "doing", "after_s"),
    [
        (NORMAL, act.HANG, 300),
        (NORMAL, POLLING, 600),
        (NORMAL, act.SPIN, 600),
        (NORMAL, act.GIL_HELD, 600),
        (NORMAL, act.IO_BLOCKED, 300),
        (EAGER, act.HANG, 30),
        (EAGER, POLLING, 30),
        (EAGER, act.IO_BLOCKED, 60),
        (EAGER, act.SPIN, 120),
        (PATIENT, act.HANG, 1800),
        (PATIENT, act.SPIN, 1800),
        (PATIENT, act.STOPPED, 10),
        (NORMAL, act.STOPPED, 10),
    ],
    ids=lambda one: one.name if isinstance(one, Activity) else None,
)
def test_patience_by_what_is_seen(told: Told, settings: dict[str, Any], doing: Activity, after_s: float) -> None:
    told.running(**settings)
    pass_time(told, act.WAITING, doing, until_s=4000.0)
    assert told.incidents["001"].action == "restart"
    assert told.now_s - 2.0 == pytest.approx(after_s, rel=0.05, abs=6.0)


def test_who_has_woken_up_once_is_known_to(told: Told) -> None:
    """A poll every minute shows in one look of many."""
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=60.0)
    pass_time(told, act.WAITING, Activity("polls", stacks=act.HANG.stacks, wakes=1.0), until_s=80.0)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    assert told.now_s == pytest.approx(602, abs=10)


ALL_IDLE = [(act.HANG, act.HANG), (act.HANG, act.IO_BLOCKED), (act.DATA_DEAD, act.DATA_DEAD)]


@pytest.mark.parametrize("doings", ALL_IDLE, ids=lambda pair: pair[1].name)
def test_where_nobody_waits_it_is_told_late_and_acted_on_at_the_hard_limit(
    told: Told, doings: tuple[Activity, Activity]
) -> None:
    told.running(**NORMAL)
    actions = pass_time(told, *doings, until_s=58.0)
    assert said(actions) == []
    assert len(said(pass_time(told, *doings, until_s=100.0))) == 1
    pass_time(told, *doings, until_s=4000.0)
    assert told.now_s == pytest.approx(1802, abs=5)
    assert told.incidents["001"].action == "restart"


@pytest.mark.parametrize(
    "doings",
    [(act.SPIN, act.SPIN), (POLLING, POLLING), (POLLING, act.HANG), (act.BACKWARD, act.HANG), (act.GIL_HELD, act.HANG)],
    ids=lambda pair: f"{pair[0].name}, {pair[1].name}",
)
def test_what_runs_or_wakes_up_while_nobody_waits_is_never_ended(told: Told, doings: tuple[Activity, Activity]) -> None:
    told.running(**NORMAL)
    pass_time(told, *doings, until_s=20_000.0)
    assert told.incidents == {}
    assert told.phase is Phase.RUNNING


def test_nor_is_what_never_trained(told: Told) -> None:
    """A server, a preprocessing script: there is no step by which it could have come to stand still."""
    told.opened(**NORMAL)
    told.started(at_s=1.0)
    report(told, 0, 5.0, progress=3, progress_s=4.0)
    pass_time(told, act.HANG, act.HANG, until_s=20_000.0)
    assert told.incidents == {}


def test_before_the_first_step_who_is_waited_for_is_held_to_account(told: Told) -> None:
    told.opened(**NORMAL)
    told.started(at_s=1.0)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    assert told.now_s == pytest.approx(301, abs=3)


def test_once_a_rank_has_ended_it_is_only_told(told: Told) -> None:
    told.running(ranks=3, **NORMAL)
    told.exits(2, 0, 3.0)
    actions = pass_time(told, act.WAITING, act.HANG, until_s=9000.0)
    assert "StopAttempt" not in kinds(actions)
    assert [incident.action for incident in told.incidents.values()] == ["none"]
    assert "a rank has come to its end" in said(actions)[-1]


def test_a_lingering_process_is_waited_for_as_torchrun_would(told: Told) -> None:
    told.running(ranks=1, **NORMAL)
    told.tell(ev.RankEnded(attempt=0, global_rank=0))
    actions = pass_time(told, act.LINGERING, until_s=20_000.0)
    assert "StopAttempt" not in kinds(actions)
    assert told.incidents == {}


def test_the_same_place_again_is_information_about_the_place(told: Told) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    assert hang_again(told, act.WAITING, act.HANG) == pytest.approx(1200, abs=10)
    assert hang_again(told, act.WAITING, act.HANG) == pytest.approx(1800, abs=10)
    assert told.phase is Phase.STOPPING


def test_not_so_where_it_is_eager_or_there_is_proof(told: Told) -> None:
    told.running(**EAGER)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    assert hang_again(told, act.WAITING, act.HANG) == pytest.approx(30, abs=5)
    told.check()
    proof = Told()
    proof.running(**NORMAL)
    pass_time(proof, act.WAITING, act.STOPPED, until_s=4000.0)
    assert hang_again(proof, act.WAITING, act.STOPPED) < 15
    assert hang_again(proof, act.WAITING, act.STOPPED) < 15
    proof.check()


def test_a_timeout_that_the_script_gave_its_group_is_its_word(told: Told) -> None:
    """Five hours means five hours, the hard limit notwithstanding."""
    told.running(**NORMAL)
    mine = GroupLook(
        name="0", ranks=[0, 1], issued=7, timeout_s=18_000.0, calls=[Call(7, "all_reduce", state="started")]
    )
    pass_time(told, act.WAITING, act.HANG, until_s=30_000.0, groups=[mine])
    assert told.now_s == pytest.approx(18_002, abs=20)


def test_a_proven_standstill_needs_no_patience_but_somebody_who_waits(told: Told) -> None:
    stuck = Activity("deadlock", "rank_blocked", act.HANG.stacks, standstill="every thread of it waits for a lock")
    told.running(**NORMAL)
    pass_time(told, act.WAITING, stuck, until_s=4000.0)
    assert told.now_s - 2.0 < 20.0
    incident = told.incidents["001"]
    assert (incident.action, incident.cause) == ("restart", "rank_blocked")
    assert "every thread of it waits for a lock" in incident.summary
    told.check()
    alone = Told()
    alone.running(**NORMAL)
    pass_time(alone, stuck, stuck, until_s=1700.0)
    assert alone.incidents == {}, "it may wait for a signal"


# guardctl restart --------------------------------------------------------------------------------------


def test_a_restart_that_is_asked_for(told: Told) -> None:
    told.running(**NORMAL)
    actions = told.tell(ev.RestartAsked(who="ada"), 5.0)
    assert kinds(actions) == ["StopAttempt"]
    assert said(actions) == ["restart asked for by ada"]
    assert kinds(told.stopped(6.0)) == ["ChooseCheckpoint"]
    told.restarted(step=12)
    assert (told.attempt, told.state.restarts, told.incidents) == (1, 0, {})
    assert [attempt["outcome"] for attempt in told.state.attempts] == ["restarted"]


def test_of_ranks_that_end_well_when_they_are_told_to(told: Told) -> None:
    """By a handler of SIGTERM, say: training has not come to its end."""
    told.running(**NORMAL)
    told.tell(ev.RestartAsked(who="ada"), 5.0)
    for rank in (0, 1):
        told.tell(ev.RankEnded(attempt=0, global_rank=rank), 5.2)
        told.exits(rank, 0, 5.5)
    assert kinds(told.stopped(6.0)) == ["ChooseCheckpoint"]


def test_of_a_stall_it_leaves_the_evidence_behind(told: Told) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=40.0)
    assert kinds(told.tell(ev.RestartAsked(who="ada"), 41.0)) == []
    actions = pass_time(told, act.WAITING, act.HANG, until_s=45.0)
    assert kinds(actions)[-2:] == ["WriteIncident", "StopAttempt"]
    assert told.incidents["001"].acted_s == pytest.approx(41, abs=3)
    assert kinds(told.stopped())[-1] == "ChooseCheckpoint"
    assert told.incidents["001"].action == "restart"
    assert told.state.restarts == 0, "a person's restart costs no budget"


@pytest.mark.parametrize("more", [{"act": False}, {"max_restarts": 0}], ids=str)
def test_a_person_may_whatever_guardrun_may(told: Told, more: dict[str, Any]) -> None:
    told.running(**NORMAL, **more)
    told.tell(ev.HoldSet(is_held=True, who="ada"))
    pass_time(told, act.WAITING, act.HANG, until_s=40.0)
    told.tell(ev.RestartAsked(who="ada"), 41.0)
    pass_time(told, act.WAITING, act.HANG, until_s=45.0)
    assert kinds(told.stopped())[-1] == "ChooseCheckpoint"


def test_a_stall_that_is_over_when_it_is_looked_at_is_ended_all_the_same(told: Told) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=40.0)
    told.tell(ev.RestartAsked(who="ada"), 41.0)
    assert kinds(told.step(11, 41.5)) == ["StopAttempt"]
    assert kinds(told.stopped()) == ["ChooseCheckpoint"]
    assert told.incidents == {}


@pytest.mark.parametrize("ends", ["a signal", "a crash"])
def test_what_a_stall_took_is_no_training_whatever_ends_it(told: Told, ends: str) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=70.0)
    began_s = told.state.attempt.progress_s if told.state.attempt else 0.0
    shown = without_stall(told.state, 70.0)
    assert shown.lost_s(70.0)["detecting"] == pytest.approx(70.0 - began_s, abs=2)
    assert told.state.ledger.lost_s(70.0)["detecting"] == 0, "it may end by itself"
    if ends == "a signal":
        told.tell(ev.StopRequested(signum=2), 70.0)
    else:
        told.exits(1, 1, 70.0)
        told.stopped(71.0, r1=1)
    assert told.state.ledger.lost_s(80.0)["detecting"] == pytest.approx(70.0 - began_s, abs=2)


# What is past ------------------------------------------------------------------------------------------


def test_a_stop_that_ends_with_0_is_no_end_of_training(told: Told) -> None:
    """A handler of SIGTERM that saves, and exits with 0."""
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    actions = told.stopped(told.now_s + 1.0, r0=0, r1=0)
    assert kinds(actions)[-1] == "ChooseCheckpoint"


def test_training_without_steps_is_past_the_place_when_it_has_got_further(told: Told) -> None:
    told.opened(**NORMAL)
    told.started(at_s=1.0)
    for rank in (0, 1):
        report(told, rank, 2.0, progress=50, progress_s=1.9)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    told.stopped(told.now_s + 1.0)
    told.chosen()
    told.started(1, at_s=told.now_s + 1.0)
    for rank, progress in ((0, 49), (1, 49), (0, 51)):
        report(told, rank, told.now_s + 1.0, progress=progress, progress_s=told.now_s + 0.9)
        assert told.incidents["001"].recovered_s is None
    assert said(report(told, 1, told.now_s + 1.0, progress=51, progress_s=told.now_s + 0.9)) == [
        "training is past incident 001 (rank_blocked)"
    ]


def test_a_run_that_ends_well_is_past_whatever_stopped_it(told: Told) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.HANG, until_s=4000.0)
    told.stopped(told.now_s + 1.0)
    told.restarted(step=5)
    told.stopped(told.now_s + 1.0, r0=0, r1=0)
    assert told.state.outcome == "finished"
    assert told.incidents["001"].recovered_s is not None


@pytest.mark.parametrize("state", ["t", "D", "S"])
def test_one_odd_look_takes_no_native_code_for_a_loop(told: Told, state: str) -> None:
    """It met a page fault, or our own py-spy: patience with a loop is long over by then."""
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.FITTING, until_s=900.0)
    assert [kinds(told.tick())] == [["TakeLook"]]
    odd = Activity("odd", stacks=act.FITTING.stacks, cpu=1.0, state=state)
    assert look(told, act.WAITING, odd, at_s=told.now_s + 0.2) == []
    pass_time(told, act.WAITING, act.FITTING, until_s=1500.0)
    assert told.incidents == {}


def test_native_code_that_became_a_loop_is_acted_on(told: Told) -> None:
    told.running(**NORMAL)
    pass_time(told, act.WAITING, act.FITTING, until_s=300.0)
    pass_time(told, act.WAITING, act.SPIN, until_s=2000.0)
    assert told.incidents["001"].cause == "rank_spinning"
