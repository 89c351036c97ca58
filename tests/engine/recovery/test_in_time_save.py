"""A save by a rank that is well, before the ranks are ended: when, by whom, and what becomes of the stop."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.model.verdicts import Detected
from guardrun.supervisor.engine.recovery.decide import decide
from guardrun.supervisor.engine.recovery.voluntary.in_time import FAILED
from guardrun.supervisor.engine.state.state import SAVES_IN_TIME
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.recovery.falling import JIT_S, end_crash, numeric, report, training

SAVED = ev.Checkpoint(path="/out/jit_12.pt", step=12)


def asked(actions: list[ac.Action]) -> ac.SaveInTime:
    assert "StopAttempt" not in kinds(actions), "nobody is ended before"
    [order] = [one for one in actions if isinstance(one, ac.SaveInTime)]
    return order


def answer(told: Told, order: ac.SaveInTime, **more: object) -> list[ac.Action]:
    fields = {"request": order.request, "attempt": order.attempt, "global_rank": 0, **more}
    return told.tell(msgspec.convert(fields, ev.SavedInTime), told.now_s + 0.7)


def hang(told: Told, culprit: int, kind: str = "hang") -> list[ac.Action]:
    """As the detector of hangs has it told."""
    found = Detected(
        key="h", kind=kind, cause="rank_blocked", confidence=0.9, summary="It hangs.", culprits=[culprit],
        onset_s=told.now_s, evidence={"a": 1}, stops_since_s=told.now_s,
    )  # fmt: skip
    return decide(told.state, [found], told.now_s)


def spoiled(actions: list[ac.Action]) -> list[ac.Spoiled]:
    [order] = [one for one in actions if isinstance(one, ac.ChooseCheckpoint)]
    return order.spoiled


def test_after_a_crash_a_rank_saves_before_the_others_are_ended(told: Told) -> None:
    training(told)
    order = asked(told.exits(0, -9, 6.0))
    assert (order.global_ranks, order.alive, order.until_s) == ([1, 2], [1, 2], 6.0 + JIT_S)
    assert told.phase is Phase.STOPPING
    actions = answer(told, order, global_rank=1, checkpoint=msgspec.to_builtins(SAVED), took_s=0.42, is_unchecked=True)
    assert kinds(actions) == ["StopAttempt"]
    [said] = [one.text for one in actions if isinstance(one, ac.Say)]
    assert said.startswith("rank 1 saved step 12 in 0.4 s before the restart")
    assert answer(told, order) == [], "once"
    assert spoiled(end_crash(told)) == []
    [incident] = told.incidents.values()
    assert incident.evidence["jit"] == {"rank": 1, "step": 12, "path": SAVED.path, "took_s": 0.42, "unchecked": True}
    assert (incident.action, [one.rank for one in incident.culprits]) == ("restart", [0])


def test_all_who_have_saved_a_part_are_named(told: Told) -> None:
    training(told)
    order = asked(told.exits(0, -9, 6.0))
    saved = msgspec.to_builtins(SAVED)
    actions = answer(told, order, global_rank=1, global_ranks=[1, 2], checkpoint=saved, took_s=0.42)
    [said] = [one.text for one in actions if isinstance(one, ac.Say)]
    assert said == f"ranks 1-2 saved step 12 in 0.4 s before the restart: {SAVED.path}"
    end_crash(told)
    [incident] = told.incidents.values()
    assert incident.evidence["jit"] == {"rank": 1, "ranks": [1, 2], "step": 12, "path": SAVED.path, "took_s": 0.42}


def test_in_a_hang_neither_the_culprit_nor_who_is_stopped_is_asked(told: Told) -> None:
    told = told.branch()  # who decides is called by hand
    training(told, ranks=5, saving=(0, 1, 2, 3, 4))
    for number, at_s in ((2, 6.0), (1, 9.0)):
        looked_at = ev.RankReport(
            global_rank=number, state="t", progress=12, progress_s=5.0, step=12, milestones=SAVES_IN_TIME
        )
        told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[looked_at]), at_s)
    order = asked(hang(told, 0))
    assert (order.global_ranks, order.alive) == ([3, 4, 1], [0, 1, 2, 3, 4]), "one was looked at just now"


def test_who_has_raised_is_asked_last(told: Told) -> None:
    training(told)
    error = msgspec.structs.replace(ERROR, at_s=5.5)
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=error), 5.5)
    assert asked(told.exits(0, -9, 6.0)).global_ranks == [2, 1]


def test_what_does_not_come_costs_its_time_and_what_it_wrote_is_passed_over(told: Told) -> None:
    training(told)
    order = asked(told.exits(1, -9, 6.0))
    told.tick()  # exits are to be read
    told.read(6.5)
    actions = told.tick()
    assert told.now_s == pytest.approx(6.0 + JIT_S, abs=1e-3)
    assert kinds(actions) == ["StopAttempt"]
    assert answer(told, order, checkpoint=msgspec.to_builtins(SAVED)) == [], "too late"
    [one] = spoiled(told.stopped(told.now_s + 1.0))
    assert (one.since_s, one.until_s, one.why) == (6.0, told.now_s, FAILED)
    assert "20 s" in next(iter(told.incidents.values())).evidence["jit"]["why"]


def test_what_failed_costs_nothing_more(told: Told) -> None:
    training(told)
    order = asked(told.exits(1, -9, 6.0))
    assert kinds(answer(told, order, why="OSError: full", has_begun=True)) == ["StopAttempt"]
    [one] = spoiled(end_crash(told))
    assert one.since_s == 6.0
    told.restarted(12)
    assert [spoilt.why for spoilt in spoiled(told.crashed())] == [FAILED], "once"


def test_where_no_function_was_called_nothing_is_passed_over(told: Told) -> None:
    training(told)
    order = asked(told.exits(1, -9, 6.0))
    answer(told, order, why="rank 0: an optimizer's step has begun", has_begun=False)
    assert spoiled(end_crash(told)) == []
    assert next(iter(told.incidents.values())).evidence["jit"] == {"why": "rank 0: an optimizer's step has begun"}


def test_a_rank_that_has_saved_and_ended_is_heard(told: Told) -> None:
    """Its peer is gone: it ends as soon as it has saved, before anybody has looked at what it wrote."""
    training(told)
    order = asked(told.exits(1, -9, 6.0))
    assert kinds(told.exits(0, 1, 6.2)) == kinds(told.exits(2, 1, 6.3)) == []
    answer(told, order, checkpoint=msgspec.to_builtins(SAVED))
    assert spoiled(end_crash(told)) == []


def test_ranks_that_are_gone_with_nobody_left_to_answer_are_not_waited_for_long(told: Told) -> None:
    training(told)
    asked(told.exits(1, -9, 6.0))
    assert len(spoiled(end_crash(told))) == 1
    assert next(iter(told.incidents.values())).evidence["jit"] == {"why": "the ranks have ended"}


def test_a_signal_ends_it_at_once_and_the_next_guardrun_takes_nothing_of_it(told: Told) -> None:
    training(told)
    asked(told.exits(1, -9, 6.0))
    told.tell(ev.StopRequested(signum=15), 7.0)
    told.stopped(7.5)
    assert told.phase is Phase.ENDED
    again = ev.RunContinued(settings=told.state.settings, node="node-a", world_size=3, wall_s=0.0)
    [one] = spoiled(told.tell(again, 100.0))
    assert (one.since_s, one.until_s) == (6.0, 7.5)


def test_another_supervisor_stops_the_ranks_and_takes_nothing_of_it(told: Told) -> None:
    training(told)
    order = asked(told.exits(1, -9, 6.0))
    actions = told.tell(ev.SupervisorRestarted(), 8.0)
    assert "StopAttempt" in kinds(actions)
    assert answer(told, order, checkpoint=msgspec.to_builtins(SAVED)) == []
    assert len(spoiled(end_crash(told))) == 1


def test_time_in_which_the_machine_stood_still_is_nobody_s(told: Told) -> None:
    training(told)
    asked(told.exits(1, -9, 6.0))
    told.tell(ev.TimeSkipped(gap_s=100.0), 110.0)
    attempt = told.state.attempt
    assert attempt is not None and attempt.in_time is not None
    assert attempt.in_time.until_s == 126.0


def test_a_job_that_ends_meanwhile_leaves_it_no_more_time_than_it_has(told: Told) -> None:
    training(told, term_grace_s=17.0)
    asked(told.exits(1, -9, 6.0))
    told.tell(ev.PreemptionNoticed(signum=15), 7.0)
    told.tick()
    told.read(told.now_s)
    while "StopAttempt" not in kinds(told.tick()):
        pass
    assert told.now_s < 15.0


@pytest.mark.parametrize(
    ("settings", "saving"),
    [({"jit_s": 0.0}, (0, 1, 2)), ({"is_torchrun_agent": True}, (0, 1, 2)), ({"act": False}, (0, 1, 2)), ({}, ())],
)
def test_where_nobody_wants_it_all_is_as_ever(settings: dict[str, object], saving: tuple[int, ...], told: Told) -> None:
    training(told, saving=saving, **settings)
    assert "StopAttempt" in kinds(told.exits(1, -9, 6.0))
    assert told.state.attempt is not None and told.state.attempt.in_time is None


def test_other_ends_than_hangs_and_crashes_have_nobody_save(told: Told) -> None:
    told = told.branch()
    training(told)
    assert "StopAttempt" in kinds(hang(told, 1, kind="node"))


def test_guardctl_restart_has_nobody_save(told: Told) -> None:
    training(told)
    assert "StopAttempt" in kinds(told.tell(ev.RestartAsked(who="ada")))


def alone(told: Told) -> None:
    report(told, saving=(1,))


def begun_beside(told: Told) -> None:
    assert told.state.attempt is not None
    told.state.attempt.resumed_from = ev.Checkpoint(path="/out/a.pt", step=5)


def held_back(told: Told) -> None:
    assert told.state.attempt is not None
    told.state.attempt.ranks[0].is_save_held = True


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (numeric, "nan_loss"),
        (alone, "no rank that could save is well"),
        (begun_beside, "nobody has opened the checkpoint"),
        (held_back, "a save is held back"),
    ],
)
def test_what_is_in_doubt_is_not_saved_and_that_is_said(make: object, why: str, told: Told) -> None:
    told = told.branch()  # whose state is changed by hand here, which no replay would do
    training(told)
    make(told)  # type: ignore[operator]
    assert "StopAttempt" in kinds(told.exits(1, -9, 6.0))
    end_crash(told)
    [incident] = [one for one in told.incidents.values() if one.kind == "crash"]
    assert why in incident.evidence["jit"]["why"]


def on_nodes(told: Told, nodes: int = 3) -> None:
    """Two ranks a node, at step 12."""
    told.fleet_opened(nodes, jit_s=JIT_S)
    told.fleet_started(1.0)
    for node in range(nodes):
        ranks = [
            ev.RankReport(global_rank=n, progress=12, progress_s=5.0, step=12, milestones=SAVES_IN_TIME)
            for n in (2 * node, 2 * node + 1)
        ]
        told.tell(ev.NodeReport(node=f"n{node}", attempt=0, ranks=ranks), 5.0)


def test_on_several_nodes_any_rank_that_is_well_may_be_asked(told: Told) -> None:
    on_nodes(told)
    order = asked(told.exits(0, -9, 6.0))
    assert (order.global_ranks, order.alive) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    answer(told, order, why="rank 1: OSError: full", has_begun=True)
    [one] = spoiled(end_crash(told))
    assert one.until_s > told.now_s, "another node's clock may be ahead"


def test_a_lost_node_s_ranks_are_neither_asked_nor_compared(told: Told) -> None:
    on_nodes(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=5.5, is_dropped=True), 6.0)
    actions: list[ac.Action] = []
    while "SaveInTime" not in kinds(actions):
        assert "StopAttempt" not in kinds(actions) and told.now_s < 30.0
        actions = told.tick()
    order = asked(actions)
    assert (order.global_ranks, order.alive) == ([0, 1, 4, 5], [0, 1, 4, 5])
    [incident] = told.incidents.values()
    assert incident.cause == "node_lost"
    assert kinds(answer(told, order, checkpoint=msgspec.to_builtins(SAVED))) == ["StopAttempt"]


def test_a_node_whose_connection_was_closed_is_taken_for_dead(told: Told) -> None:
    on_nodes(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=5.5, is_dropped=True), 5.8)
    order = asked(told.exits(0, -9, 6.0))
    assert (order.global_ranks, order.alive) == ([1, 4, 5], [1, 4, 5])


def test_while_a_node_is_silent_nobody_saves(told: Told) -> None:
    """Its ranks may be further, or save by themselves."""
    on_nodes(told)
    told.tell(ev.NodeSuspected(node="n2", since_s=1.0), 5.8)
    assert "StopAttempt" in kinds(told.exits(0, -9, 6.0))
    assert told.state.attempt is not None and told.state.attempt.in_time is not None
    assert told.state.attempt.in_time.told == {"why": "n2 is silent: what its ranks have done is not known"}
