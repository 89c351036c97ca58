"""A save before memory runs out, and a restart from it: when, and when not."""

from __future__ import annotations

import math

import pytest

from guardrun.hooks.wire.board import Milestone
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.hang_patience import patience
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.memory_save import MOST_TRIES
from guardrun.supervisor.engine.recovery.voluntary.memory import AHEAD, MARGIN, WORTH
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.detectors.growth_curves import Curve, fills, noise, only, plus, saw, until_full
from tests.engine.detectors.hang.looks import pass_time
from tests.engine.recovery.leaking import BASE, HOUR_S, LIMIT, MIN_S, SAVES, Leaking, heals, leak, leaking, next_attempt
from tests.sim import activity as act

FREE = LIMIT - 8.0 - 2 * BASE
PER_HOUR = 10.0
OUT_S = FREE / PER_HOUR * HOUR_S
"""When nothing is left: after five hours."""


def answered(told: Told, own: Curve | None = None, **settings: object) -> Leaking:
    """It is asked for, and saved: the attempt ends."""
    story = leaking(told, own or leak(PER_HOUR), **settings)  # type: ignore[arg-type]
    request = story.until_asked().request
    story.save()
    story.completed(request)
    return story


# What is done --------------------------------------------------------------------------------------------


def test_the_ranks_are_asked_shortly_before_and_begun_anew_from_what_they_save(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked()
    asked_s, _ = story.asked_at[-1]
    left_s = OUT_S - (asked_s - story.began_s)
    assert MARGIN * MIN_S * 0.8 <= left_s <= 4 * MARGIN * MIN_S
    assert (request.is_quiet, request.attempt, request.since_s) == (False, 0, pytest.approx(asked_s, abs=1e-3))
    assert left_s > request.until_s - asked_s >= 0.9 * MARGIN * MIN_S
    assert not story.is_stopped, "training goes on until the save is whole"
    story.save()
    step = story.step()
    story.completed(request.request, step)
    assert kinds(story.actions)[-1] == "StopAttempt" and told.phase is Phase.STOPPING
    incident, took_s = only(told), pytest.approx(told.now_s - asked_s, abs=0.1)
    assert incident.evidence["saved"] == {"path": f"/out/ckpt_{step}.pt", "step": step, "asked": True, "took_s": took_s}
    assert incident.acted_s is not None
    assert any("the ranks are asked to save" in text for text in story.said)
    assert any("restarting from it before memory runs out" in text for text in story.said)
    after = next_attempt(told, step, leak(0.1))
    incident = only(told)
    assert (incident.cause, incident.action) == ("host_leak", "restart")
    assert incident.resumed_from is not None and incident.resumed_from.step == step
    after.until(600.0)
    assert only(told).recovered_s is not None and told.state.restarts == 1


def test_a_device_is_saved_before_too(told: Told) -> None:
    story = leaking(told, leak(0.0))
    story.device = lambda s: 4 + 20 * s / HOUR_S
    request = story.until_asked().request
    assert 2.5 * HOUR_S < told.now_s - story.began_s < 3 * HOUR_S
    story.completed(request)
    assert story.is_stopped and only(told).cause == "gpu_leak"


def test_a_long_save_is_asked_for_sooner(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), saves_take_s=600.0)
    story.until(10 * MIN_S)
    story.save()
    story.until_asked()
    left_s = OUT_S - (told.now_s - story.began_s)
    assert 30 * MIN_S < left_s < 80 * MIN_S


def test_a_save_of_its_own_in_time_is_used_and_nothing_asked(told: Told) -> None:
    """Every half hour: the last one before memory is out."""
    story = leaking(told, leak(PER_HOUR), save_every_s=30 * MIN_S)
    request = story.until_asked()
    assert request.is_quiet and request.since_s == told.now_s - 1.0
    left_s = OUT_S - (told.now_s - story.began_s)
    assert 0.3 * 30 * MIN_S < left_s < (AHEAD + 0.7) * 30 * MIN_S
    story.completed(request.request)
    assert story.is_stopped and only(told).evidence["saved"]["asked"] is False


def test_saves_of_one_step_are_one(told: Told) -> None:
    """Model, optimizer, each rank's part: their distance is no measure of how often the run saves."""
    story = leaking(told, leak(PER_HOUR))
    for minutes in (30, 60, 90, 120):
        story.until(minutes * MIN_S)
        for _ in range(4):
            story.save()
    assert told.state.save_times.gaps_s == pytest.approx([1800.0] * 3, abs=60.0)


def test_it_comes_again_and_is_saved_before_again(told: Told) -> None:
    story = answered(told)
    for number in (1, 2, 3, 4):
        story = next_attempt(told, story.step(), leak(PER_HOUR))
        request = story.until_asked().request
        story.completed(request)
        assert story.is_stopped, number
    told.stopped(told.now_s + 1.0)
    assert told.state.restarts == 5 and len(told.incidents) == 5
    assert "2nd time on this rank" in told.incidents["002"].summary


def test_a_new_supervisor_asks_again(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked()
    [again] = [one for one in story.tell(ev.SupervisorRestarted()) if isinstance(one, ac.AskCheckpoint)]
    assert again == request
    assert story.completed(again.request) and story.is_stopped


def test_a_job_that_stood_still_is_asked_again(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    first = story.until_asked()
    story.tell(ev.TimeSkipped(gap_s=20.0))
    assert not story.completed(first.request) and not story.is_stopped
    second = story.until_asked()
    assert second.request > first.request
    story.completed(second.request)
    assert story.is_stopped


def test_nodes_of_a_fleet_are_all_begun_anew(told: Told) -> None:
    told.fleet_opened(2, **SAVES)
    told.fleet_started(1.0)
    for node in ("n0", "n1"):
        report = [
            ev.RankReport(global_rank=n + 2 * (node == "n1"), progress=10, progress_s=2.0, step=10) for n in (0, 1)
        ]
        told.tell(ev.NodeReport(node=node, attempt=0, ranks=report), 2.0)
    story = Leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    story.completed(request)
    assert told.phase is Phase.STOPPING and [one.node for one in only(told).culprits] == ["n0"]
    told.stopped(told.now_s + 1.0)
    assert told.state.fleet is not None and not told.state.nodes.isolated
    assert only(told).action == "restart", "and the node, which is not to blame, takes part again"


def test_a_node_that_is_not_heard_of_meanwhile_comes_first(told: Told) -> None:
    told.fleet_opened(2, **SAVES)
    told.fleet_started(1.0)
    told.step(10, 2.0, range(4))
    story = Leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    story.tell(ev.NodeSuspected(node="n1", since_s=told.now_s))
    story.completed(request)
    assert not story.is_stopped
    story.tell(ev.NodeContactRestored(node="n1"))
    story.completed(story.until_asked().request)
    assert story.is_stopped, "and then it is asked again"


# What is not ------------------------------------------------------------------------------------------------


def test_by_default_it_is_only_told(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), save_every_s=30 * MIN_S, saves_before_oom=False).until(24 * HOUR_S)
    assert only(told).cause == "host_leak" and not story.asked_at and not story.is_stopped


DECOYS = {
    "a sawtooth": saw(30, 1800, BASE),
    "a slow sawtooth": saw(30, 4 * HOUR_S, BASE),
    "a cache that fills": fills(40, 2 * HOUR_S, BASE),
    "a cache that is full": until_full(30, 2 * HOUR_S, BASE),
    "noise": plus(lambda s: BASE, noise(2, 1)),
    "an evaluation": lambda s: BASE + (30.0 if s % 3600 > 3000 else 0.0),
    "longer ones come late": lambda s: BASE + 8 * math.log1p(s / 600),
}


@pytest.mark.parametrize("own", [pytest.param(curve, id=name) for name, curve in DECOYS.items()])
def test_what_ends_by_itself_is_not_saved_before(told: Told, own: Curve) -> None:
    story = leaking(told, own, save_every_s=20 * MIN_S).until(9 * HOUR_S)
    assert not story.asked_at and not story.is_stopped


def test_what_heals_before_it_is_near_is_not(told: Told) -> None:
    story = leaking(told, heals(PER_HOUR, 0.8 * OUT_S), save_every_s=5 * MIN_S).until(24 * HOUR_S)
    assert only(told).recovered_s is not None
    assert not story.asked_at and not story.is_stopped


def test_what_heals_after_it_was_asked_is_not_restarted(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    level = story.own(told.now_s - story.began_s)
    story.own = lambda s: level
    story.until(24 * HOUR_S, lambda: only(told).recovered_s is not None)
    assert not story.completed(request) and not story.is_stopped
    story.until(told.now_s - story.began_s + 4 * HOUR_S)
    assert not story.is_stopped and len(story.asked_at) == 1


def test_a_script_that_never_saves_is_left_alone_and_that_is_told_once(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR)).until(24 * HOUR_S)
    assert len(story.asked_loudly()) == 1 and not story.is_stopped
    assert "no whole checkpoint within" in only(told).evidence["not_saved"]
    assert len([text for text in story.said if "nothing is restarted" in text]) == 1
    told.crashed()
    told.chosen(None)
    told.started(1, at_s=told.now_s + 1.0)
    told.step(1, told.now_s + 5.0)
    again = Leaking(told, leak(PER_HOUR)).until(24 * HOUR_S)
    assert len(again.asked_loudly()) == 1, "another attempt, in which it may be heard"
    assert not [text for text in again.said if "nothing is restarted" in text], "but that is known"


def test_an_own_save_that_is_torn_is_not_resumed_from(told: Told) -> None:
    """Nobody finds it whole: it is waited for the next, and then asked."""
    story = leaking(told, leak(PER_HOUR), save_every_s=30 * MIN_S).until(24 * HOUR_S)
    quiet = [one for _, one in story.asked_at if one.is_quiet]
    assert quiet and len(story.asked_loudly()) == 1
    assert not story.is_stopped and "not_saved" in only(told).evidence


def test_what_answers_another_request_is_none(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    assert not story.completed(request + 1) and not story.completed(0) and not story.is_stopped
    story.tell(ev.CheckpointCompleted(request=request))
    assert not story.is_stopped, "there was none"


def test_a_notice_that_the_job_ends_has_the_word(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked()
    [own] = [one for one in story.tell(ev.PreemptionNoticed(signum=10)) if isinstance(one, ac.AskCheckpoint)]
    assert own.request > request.request and own.attempt == -1
    assert not story.completed(request.request) and not story.is_stopped
    story.completed(own.request)
    [stop] = story.of(ac.StopAttempt)
    assert stop.is_last
    told.stopped()
    assert told.state.outcome == "preempted" and told.state.restarts == 0


def test_a_job_that_ends_before_is_left_alone(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), save_before_end_s=0)
    story.tell(ev.SchedulerStatusChanged(end_s=OUT_S - 2 * MIN_S))
    story.until(OUT_S - 2 * MIN_S)
    assert only(told).cause == "host_leak" and not story.asked_at


def test_a_job_that_ends_later_is_not(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), save_before_end_s=0)
    story.tell(ev.SchedulerStatusChanged(end_s=OUT_S + HOUR_S))
    assert not story.until_asked().is_quiet


def test_a_run_that_comes_to_its_end_is_left_alone(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    story.tell(ev.RankEnded(attempt=0, global_rank=0))
    story.completed(request)
    assert not story.is_stopped


def test_a_rank_that_falls_meanwhile_has_its_own_incident(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    told.crashed(error=ERROR)
    assert not story.completed(request)
    assert [one.cause for one in told.incidents.values()] == ["host_leak", "exception"]
    assert told.incidents["001"].action == "none" and told.state.memory_restarts == 0
    told.chosen(None)
    told.started(1, at_s=told.now_s + 1.0)
    assert not story.completed(request) and not story.is_stopped, "it was another attempt's"


def test_while_the_ranks_stand_still_nothing_is_ended(told: Told) -> None:
    """It may be a hang, which comes with evidence; the save is as good as before, if it is none."""
    story = leaking(told, leak(PER_HOUR), tell_s=15.0, is_sure=True, **patience("normal"))
    request = story.until_asked().request
    hang = told.state.detectors.hang
    stands = lambda: hang.suspicion is not None and hang.suspicion.stall is not None  # noqa: E731
    pass_time(told, act.WAITING, act.HANG, until_s=told.now_s + 200.0, is_enough=stands)
    assert stands() and told.state.attempt is not None
    story.completed(request)
    assert not story.is_stopped and told.phase is Phase.RUNNING
    pass_time(told, act.WAITING, act.HANG, until_s=told.now_s + HOUR_S, is_enough=lambda: len(told.incidents) > 1)
    assert told.incidents["002"].kind == "hang" and told.phase is Phase.STOPPING
    assert told.incidents["001"].action == "none" and told.state.memory_restarts == 0


def test_a_hang_that_ends_the_attempt_ends_the_request(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), save_before_end_s=0)
    request = story.until_asked().request
    pass_time(told, act.WAITING, act.HANG, until_s=told.now_s + 200.0, is_enough=lambda: len(told.incidents) > 1)
    assert told.incidents["002"].kind == "hang" and told.phase is Phase.STOPPING
    assert not story.completed(request)
    told.stopped(told.now_s + 1.0)
    assert (told.incidents["001"].action, told.incidents["002"].action) == ("none", "restart")


def test_while_a_person_holds_the_run_nothing_is_asked(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    story.tell(ev.HoldSet(is_held=True, who="me"))
    story.until(OUT_S - 10 * MIN_S)
    assert not story.asked_at
    story.tell(ev.HoldSet(is_held=False, who="me"))
    assert not story.until_asked().is_quiet, "and then it is"


def test_one_that_holds_it_once_it_was_asked_keeps_it_running(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    request = story.until_asked().request
    story.tell(ev.HoldSet(is_held=True, who="me"))
    story.completed(request)
    story.until(24 * HOUR_S)
    assert not story.is_stopped and len(story.asked_at) == 1


def test_what_is_put_off_again_and_again_is_given_up(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    for _ in range(MOST_TRIES):
        request = story.until_asked().request
        story.tell(ev.HoldSet(is_held=True, who="me"))
        story.completed(request)
        story.tell(ev.HoldSet(is_held=False, who="me"))
    story.until(24 * HOUR_S)
    assert len(story.asked_at) == MOST_TRIES and not story.is_stopped


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resumes": False}, "its own choice"),
        ({"max_restarts": 0}, "max_restarts"),
        ({"is_torchrun_agent": True}, "torchrun's own agent"),
    ],
)
def test_where_no_restart_may_follow_it_is_saved_all_the_same(
    told: Told, settings: dict[str, object], words: str
) -> None:
    story = leaking(told, leak(PER_HOUR), save_every_s=30 * MIN_S, **settings)
    request = story.until_asked()
    assert not request.is_quiet, "its own saves need no word"
    story.completed(request.request)
    assert not story.is_stopped and words in only(told).evidence["not_restarted"]
    story.until(24 * HOUR_S)
    assert len(story.asked_at) == 1 and len([text for text in story.said if words in text]) == 1


def test_a_script_that_asks_guardrun_what_to_resume_from_needs_no_setting(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), resumes=False)
    story.milestones = Milestone.RESUMED
    story.completed(story.until_asked().request)
    assert story.is_stopped


def test_where_guardrun_may_do_nothing_nothing_is_asked(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR), act=False, save_every_s=30 * MIN_S).until(24 * HOUR_S)
    assert not story.asked_at and not story.is_stopped


def test_a_node_under_quarantine_is_not_begun_anew_on(told: Told) -> None:
    """Training there goes on; a restart would find no node."""
    story = leaking(told, leak(PER_HOUR), responses={"gpu_ecc": "isolate"})
    bad = Finding(
        id="gpu_ecc/gpu:GPU-1",
        cause="gpu_ecc",
        subject="gpu:GPU-1",
        since_s=10.0,
        told_s=10.0,
        summary="GPU 1 has gpu_ecc.",
        response=Response.ISOLATE,
    )
    devices = {1: ev.Device(subject="gpu:GPU-1", index=1)}
    story.tell(ev.NodeFindingsReported(node="node-a", findings=[bad], devices=devices))
    assert told.state.isolated_by
    story.completed(story.until_asked().request)
    assert not story.is_stopped and "quarantined" in told.incidents["002"].evidence["not_restarted"]


def test_an_attempt_that_has_only_redone_what_there_was_is_not_the_last(told: Told) -> None:
    """Another restart without progress would end the run: it may still get further."""
    leaking(told, leak(0.0), max_no_progress=1).until(4 * HOUR_S)
    told.crashed()
    told.chosen(None)
    told.started(1, at_s=told.now_s + 1.0)
    told.step(1, told.now_s + 5.0)
    story = Leaking(told, leak(2 * PER_HOUR))
    story.completed(story.until_asked().request)
    assert not story.is_stopped and "max_no_progress" in told.incidents["002"].evidence["not_restarted"]


def test_a_script_that_began_anew_before_is_not_begun_again(told: Told) -> None:
    """Nobody would let it write over what there is: the run would end."""
    story = leaking(told, leak(PER_HOUR), resumes=False)
    story.milestones = Milestone.RESUMED
    story.tell(ev.HistoryLoaded(places=[], resumes="ignores"))
    story.completed(story.until_asked().request)
    assert not story.is_stopped and "began anew" in only(told).evidence["not_restarted"]


def test_ranks_that_end_well_when_they_are_told_to_have_not_come_to_the_end(told: Told) -> None:
    """A handler of SIGTERM that leaves the loop: to call that the end of training would lose all the rest of it."""
    story = answered(told)
    for rank in (0, 1):
        story.tell(ev.RankEnded(attempt=0, global_rank=rank))
        told.exits(rank, 0, told.now_s + 0.5)
    assert kinds(told.stopped(told.now_s + 1.0)) == ["WriteIncident", "ChooseCheckpoint"]
    assert told.state.restarts == 1 and only(told).action == "restart"


def test_ranks_that_had_ended_well_just_before_have(told: Told) -> None:
    story = answered(told)
    stopped_s = told.now_s
    for rank in (0, 1):
        event = ev.RankExited(attempt=0, global_rank=rank, pid=100 + rank, exitcode=0, at_s=stopped_s - 0.1)
        told.tell(event, stopped_s + 0.2)
    told.stopped(told.now_s + 1.0)
    assert told.phase is Phase.ENDED and told.state.outcome == "finished" and story.is_stopped


def test_a_save_no_further_than_the_last_is_not_resumed_from(told: Told) -> None:
    """The script ignores what it was given, or saves a number that never grows."""
    story = answered(told)
    step = story.step()
    story = next_attempt(told, step, leak(PER_HOUR))
    story.completed(story.until_asked().request, step)
    assert not story.is_stopped and "no further than" in told.incidents["002"].evidence["not_restarted"]


def test_restarts_never_take_more_than_a_tenth_of_the_time(told: Told) -> None:
    """A start takes an hour on the average: the second time memory is out before ten of them have passed."""
    story = answered(told)
    story = next_attempt(told, story.step(), leak(PER_HOUR), start_s=2 * HOUR_S).until(24 * HOUR_S)
    assert told.incidents["002"].cause == "host_leak"
    assert not story.asked_at and not story.is_stopped
    assert OUT_S < WORTH * HOUR_S, "else the story tells nothing"


def test_a_second_finding_is_saved_before_by_the_same_save(told: Told) -> None:
    story = leaking(told, leak(PER_HOUR))
    story.device = lambda s: 4 + 60 * PER_HOUR / FREE * s / HOUR_S * 0.98
    request = story.until_asked().request
    story.until(told.now_s - story.began_s + 60.0)
    assert len(story.asked_at) == 1, "one request at a time"
    story.completed(request)
    assert len(story.of(ac.StopAttempt)) == 1
    told.stopped(told.now_s + 1.0)
    assert sorted(one.cause for one in told.incidents.values()) == ["gpu_leak", "host_leak"]
    assert sorted(one.action for one in told.incidents.values()) == ["none", "restart"]
