"""Stories of hangs: found in time, explained rightly, mended by a restart, at 1, 2, 8 and 2,048 ranks."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.lost_time import DETECTING
from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.checks import WITHIN_S, check
from tests.sim.cluster import Cluster
from tests.sim.training import Plan


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("fault", act.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_in_time_and_mended(fault: Activity, ranks: int) -> None:
    cluster = Cluster(ranks)
    cluster.do(fault, global_rank=1, at_s=200)
    cluster.run(until_s=600)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == (fault.cause, [1])
    assert incident.detected_s - 200 <= WITHIN_S[fault]
    assert incident.action == "restart"
    assert incident.resumed_from is not None and 0 < incident.resumed_from.step <= (incident.step or 0)
    assert incident.recovered_s is not None
    assert cluster.engine.state.restarts == 1
    check(cluster)


@pytest.mark.parametrize("fault", act.FAULTS, ids=lambda fault: fault.name)
def test_a_single_rank_that_hangs_is_found_too(fault: Activity) -> None:
    cluster = Cluster(ranks=1)
    cluster.do(fault, global_rank=0, at_s=200)
    cluster.run(until_s=600)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == (fault.cause, [0])
    check(cluster)


def test_who_stands_alone_before_a_first_step_has_the_hard_timeout_anew_after_a_pause() -> None:
    """It may wait for another job's data; and what was not seen for a while may have moved."""
    cluster = Cluster(ranks=1)
    cluster.do(act.IO_BLOCKED, global_rank=0, at_s=1.9)
    cluster.freeze(1000.0, 100.0)
    cluster.run(until_s=2890)
    assert not cluster.hangs
    cluster.run(until_s=3000)
    [incident] = cluster.hangs
    hard_s = cluster.settings.hard_timeout_s
    assert incident.cause == "io_blocked" and 0 <= incident.detected_s - (1100 + hard_s) < 60
    cluster.check_end()


def test_one_of_2048_ranks_is_found_in_half_a_minute() -> None:
    cluster = Cluster(ranks=2048, is_journalled=False)
    cluster.hang(global_rank=1717, at_s=60)
    cluster.run(until_s=140)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == ("rank_blocked", [1717])
    assert incident.detected_s - 60 < 33
    assert incident.summary.startswith("Rank 1717 on node-214 has waited 3")
    assert "2047 ranks wait for it in all_reduce" in incident.summary
    assert len(incident.evidence["ranks"]) <= 64
    cluster.check_end()


def test_ranks_that_spin_while_they_wait_are_not_named() -> None:
    cluster = Cluster(ranks=8, plan=Plan(waits=act.WAITING_SPINNING))
    cluster.hang(global_rank=5, at_s=100)
    cluster.run(until_s=200)
    assert cluster.named(cluster.hangs[0]) == [5]
    check(cluster)


def test_two_culprits_are_both_named() -> None:
    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=2, at_s=100)
    cluster.hang(global_rank=6, at_s=100)
    cluster.run(until_s=300)
    assert cluster.named(cluster.hangs[0]) == [2, 6]
    check(cluster)


def test_a_slow_first_step_does_not_blunt_the_watch() -> None:
    cluster = Cluster(ranks=8, plan=Plan(first_step_s=180))
    cluster.hang(global_rank=3, at_s=300)
    cluster.run(until_s=400)
    assert cluster.hangs[0].detected_s - 300 < 33
    check(cluster)


def test_long_steps_are_learned_and_looked_at_seldom() -> None:
    cluster = Cluster(ranks=8, plan=Plan(step_s=30, save_every_s=3600))
    cluster.run(until_s=3600)
    assert cluster.incidents == {}
    assert cluster.looks < 30
    before = cluster.looks
    cluster.run(until_s=7200)
    assert cluster.looks == before
    cluster.hang(global_rank=3, at_s=7250)
    cluster.run(until_s=7600)
    assert cluster.hangs[0].detected_s - 7250 < 120
    check(cluster)


def test_every_eval_costs_a_few_looks_and_nothing_else() -> None:
    cluster = Cluster(ranks=8)
    for hour in range(4):
        cluster.evaluate(global_rank=0, at_s=600 + 3600 * hour, seconds=900)
    cluster.run(until_s=4 * 3600)
    assert cluster.incidents == {}
    assert cluster.looks < 4 * 30
    check(cluster)


def test_a_stall_that_ended_is_given_twice_as_long_the_next_time() -> None:
    cluster = Cluster(ranks=8, settings=ev.Settings(idle_patience_s=60))
    cluster.pause(global_rank=4, at_s=100, seconds=45)
    cluster.pause(global_rank=4, at_s=300, seconds=80)
    cluster.run(until_s=500)
    assert cluster.incidents == {}
    cluster.do(act.Activity("pausing for ever", "rank_blocked", act.PAUSING.stacks), 4, 600)
    cluster.run(until_s=1000)
    assert 160 <= cluster.hangs[0].detected_s - 600 < 190
    check(cluster)


def test_the_same_step_that_hangs_every_time_is_poison() -> None:
    cluster = Cluster(ranks=8)
    cluster.poison_at(step=150, poison=lambda job: job.begin(3, act.HANG, cluster.now_s))
    cluster.run(until_s=3600)
    assert cluster.summary is not None
    assert (cluster.summary.outcome, cluster.summary.exit_code) == ("gave_up", 1)
    assert [i.cause for i in cluster.incidents.values()] == ["rank_blocked"] * 3 + ["poison_step"]
    assert [i.action for i in cluster.incidents.values()] == ["restart"] * 3 + ["give_up"]
    assert cluster.last.evidence["own_cause"] == "rank_blocked"
    assert cluster.named(cluster.last) == [3]
    assert cluster.engine.state.restarts == 3
    check(cluster)


def test_hangs_that_get_further_each_time_use_up_the_restarts() -> None:
    cluster = Cluster(ranks=2, settings=ev.Settings(max_restarts=4))
    for n in range(1, 6):
        cluster.hang(global_rank=1, at_s=400 * n)
    cluster.run(until_s=4000)
    assert cluster.summary is not None
    assert cluster.summary.reason == "all 4 restarts are used up"
    assert cluster.summary.restarts == 4
    check(cluster)


def test_a_hang_in_a_run_that_is_only_watched_is_told_once_and_left_alone() -> None:
    cluster = Cluster(ranks=8, settings=ev.Settings(act=False))
    doing = act.Activity("hang that ends", "rank_blocked", act.HANG.stacks)
    cluster.do(doing, global_rank=3, at_s=100, seconds=1000)
    cluster.run(until_s=1300)
    [incident] = cluster.hangs
    assert (incident.action, cluster.named(incident)) == ("none", [3])
    assert incident.recovered_s is not None and incident.recovered_s > 1100
    assert cluster.stops == []
    cluster.replay()


def test_hold_and_unhold() -> None:
    cluster = Cluster(ranks=8)
    cluster.hold(True, at_s=90)
    cluster.hang(global_rank=3, at_s=100)
    cluster.run(until_s=400)
    [incident] = cluster.hangs
    assert (incident.action, cluster.stops) == ("none", [])
    cluster.hold(False, at_s=410)
    cluster.run(until_s=600)
    assert len(cluster.stops) == 1 and cluster.stops[0][0] < 425
    assert cluster.incidents[incident.id].action == "restart"
    assert cluster.incidents[incident.id].recovered_s is not None
    check(cluster)


def test_a_collection_that_holds_others_up_is_told_and_nothing_is_done() -> None:
    cluster = Cluster(ranks=8)
    for n in range(5):
        cluster.collect(global_rank=6, at_s=100 + 60 * n, seconds=2.5)
    cluster.run(until_s=500)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident), incident.action) == ("gc_pause", [6], "none")
    assert incident.recovered_s is not None
    assert cluster.stops == []
    check(cluster)


def test_a_rank_that_never_gets_to_process_group_creation() -> None:
    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=2, at_s=2)
    cluster.run(until_s=100)
    assert cluster.incidents["001"].cause == "init"
    assert cluster.named(cluster.incidents["001"]) == [2]
    check(cluster)


def test_hangs_without_hooks_are_found_from_outside() -> None:
    cluster = Cluster(ranks=8, plan=Plan(has_hooks=False))
    cluster.at(20, lambda: cluster.feed(ev.HooksMissing(attempt=0, global_ranks=list(range(8)), reason="-E")))
    cluster.hang(global_rank=3, at_s=400)
    cluster.run(until_s=700)
    assert (cluster.hangs[0].cause, cluster.named(cluster.hangs[0])) == ("rank_blocked", [3])
    assert cluster.hangs[0].detected_s - 400 < 120
    check(cluster)


def test_lost_late_and_repeated_looks_only_delay_the_verdict() -> None:
    for kind in ("lost", "late", "twice"):
        cluster = Cluster(ranks=8)
        if kind == "lost":
            cluster.lose(ac.TakeLook, 2)
        elif kind == "late":
            cluster.delay(ac.TakeLook, 50)
        else:
            cluster.repeat(ac.TakeLook)
        cluster.hang(global_rank=3, at_s=100)
        cluster.run(until_s=600)
        assert cluster.named(cluster.hangs[0]) == [3]
        check(cluster)


def test_looks_that_never_come_kill_nobody() -> None:
    cluster = Cluster(ranks=8, settings=ev.Settings(hard_timeout_s=300))
    cluster.lose(ac.TakeLook, 10**6)
    cluster.evaluate(global_rank=0, at_s=100, seconds=1000)
    cluster.run(until_s=1500)
    assert cluster.incidents == {}
    cluster.check_end()


def test_what_detecting_took_is_in_the_ledger() -> None:
    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=3, at_s=100)
    cluster.run(until_s=600)
    assert 28 <= cluster.engine.state.ledger.spent_s[DETECTING] <= 33
    check(cluster)
