"""Who holds something else than the other replicas, in which tensor, since when; and what scripts let differ."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.tensor_groups import GROUPS, group_of, tensors_in
from tests.engine.conftest import Told, kinds
from tests.engine.detectors.numeric.replicas import CHECKS, Change, Replicas, all_of, flipped, nothing, wrote
from tests.engine.detectors.numeric.training import culprits, only


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_a_majority_names_the_rank_the_tensor_and_the_steps_between(told: Told, ranks: int) -> None:
    replicas = Replicas(told, ranks)
    replicas.go(flipped(2), until=500)
    assert told.incidents == {}, "one check is none"
    replicas.check(510, True, flipped(2))
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("numeric", "replica_divergence", "none")
    assert culprits(incident) == [2] and incident.step == 500
    assert incident.evidence["parameters"] == ["layer3.weight"] and incident.evidence["agreed_step"] == 60
    assert incident.evidence["agree"] == ranks - 1
    assert incident.summary == (
        f"Rank 2 on node-a holds other values in layer3.weight than the {ranks - 1} replicas that agree: they were "
        "equal at step 60, and are not since step 500."
    )


def test_the_run_ends_where_the_user_wants_it(told: Told) -> None:
    replicas = Replicas(told, 4, stops_diverged=True).go(flipped(2), until=510)
    assert kinds(replicas.actions)[-1] == "StopAttempt"
    [ended] = [action for action in told.stopped(told.now_s + 1.0) if isinstance(action, ac.FinishRun)]
    incident = only(told)
    assert (incident.action, told.state.outcome, ended.exit_code) == ("give_up", "gave_up", 1)
    assert told.state.give_up_reason == 'replicas are no longer equal ([guards] divergence = "stop")'
    assert told.state.restarts == 0


@pytest.mark.parametrize(
    ("settings", "is_held", "why"),
    [
        ({"act": False}, False, "[policy] act = false"),
        ({"is_torchrun_agent": True}, False, "torchrun's own agent decides what follows"),
        ({}, True, "the run is held (guardctl hold)"),
    ],
)
def test_or_it_is_said_why_it_does_not(told: Told, settings: dict[str, object], is_held: bool, why: str) -> None:
    replicas = Replicas(told, 4, stops_diverged=True, **settings)  # type: ignore[arg-type]
    if is_held:
        told.tell(ev.HoldSet(is_held=True, who="me"))
    replicas.go(flipped(2), until=510)
    assert "StopAttempt" not in kinds(replicas.actions) and told.phase is Phase.RUNNING
    assert only(told).evidence["not_stopped"] == why and sum("is not stopped" in text for text in replicas.said) == 1


@pytest.mark.parametrize("stops", [True, False])
def test_equal_replicas_and_watched_ones_are_not_ended(told: Told, stops: bool) -> None:
    replicas = Replicas(told, 4, stops_diverged=stops).go((lambda *_: None) if stops else flipped(2))
    assert "StopAttempt" not in kinds(replicas.actions) and told.phase is Phase.RUNNING


def test_of_two_replicas_nobody_is_named(told: Told) -> None:
    incident = only(Replicas(told, 2).go(flipped(1)).told)
    assert culprits(incident) == [] and "nobody can say which one is right" in incident.summary
    assert incident.evidence["differ"] == "0-1"


def test_a_check_and_its_echo_tell_which_of_a_thousand_tensors_it_is(told: Told) -> None:
    incident = only(Replicas(told, 4, tensors=1000).go(flipped(3, place=777)).told)
    assert incident.evidence["parameters"] == ["layer777.weight"] and culprits(incident) == [3]


def test_no_two_tensors_share_both_groups() -> None:
    for tensors in (1, 8, 64, 65, 100, 1000, GROUPS * GROUPS):
        both = {
            (group_of(place, tensors, is_echo=False), group_of(place, tensors, is_echo=True))
            for place in range(tensors)
        }
        assert len(both) == tensors and all(0 <= group < GROUPS for pair in both for group in pair)
        place = tensors // 2
        [check, echo] = [{group_of(place, tensors, is_echo=is_echo)} for is_echo in (False, True)]
        assert list(tensors_in(tensors, check, echo)) == [place]


def test_what_begins_between_a_check_and_its_echo_is_found_by_the_next_one(told: Told) -> None:
    incident = only(Replicas(told, 4).go(flipped(1, since=505)).told)
    assert (incident.step, incident.evidence["agreed_step"], culprits(incident)) == (510, 500, [1])


def test_what_begins_before_the_first_echo_is_found(told: Told) -> None:
    incident = only(Replicas(told, 4).go(flipped(1, since=55)).told)
    assert (incident.step, incident.evidence["agreed_step"], culprits(incident)) == (60, 50, [1])


def test_all_of_one_ranks_parameters_is_less_sure(told: Told) -> None:
    """As a gradient that flips before all of them are clipped by their norm."""
    incident = only(Replicas(told, 4).go(all_of(2)).told)
    assert culprits(incident) == [2] and "most parameters" in incident.summary and incident.confidence < 0.7


def test_moments_that_differ_with_it_are_named_and_alone_are_none(told: Told) -> None:
    replicas = Replicas(told, 4).go(nothing, until=60)
    replicas.check(500, False, flipped(1, place=2), kind=1)
    replicas.check(500, False, nothing)
    replicas.check(510, True, flipped(1, place=2), kind=1)
    replicas.check(510, True, nothing)
    assert told.incidents == {} and replicas.said == []
    for count, is_echo in ((1000, False), (1010, True)):
        replicas.check(count, is_echo, flipped(1, place=2), kind=1)
        replicas.check(count, is_echo, flipped(1, place=2))
    incident = only(told)
    assert incident.evidence["moments_differ"] and "its optimizer's moments" in incident.summary


def test_it_is_over_once_they_are_equal_again(told: Told) -> None:
    replicas = Replicas(told, 4).go(flipped(1, until=1000), until=510)
    assert only(told).recovered_s is None
    replicas.check(1000, False, flipped(1, until=1000))
    assert only(told).recovered_s is not None


def test_resumed_steps_count_from_the_runs_beginning(told: Told) -> None:
    incident = only(Replicas(told, 4, steps=7000).go(flipped(1, since=7061)).told)
    assert (incident.step, incident.evidence["agreed_step"]) == (7500, 7060)


def parted(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
    """Each rank updates a part of the parameters, and a bit flips: writes say nothing."""
    flipped(2)(sums, writes, count)
    for rank in writes:
        writes[rank] = 10 * rank


def turning(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
    """Another rank each time: nothing that lasts."""
    flipped(count // 10 % len(sums))(sums, writes, count)


LET_BE: dict[str, tuple[int, Change, str]] = {
    "all equal": (4, nothing, ""),
    "all equal, of two": (2, nothing, ""),
    "heals by itself": (4, flipped(1, until=510), ""),
    "another rank each time": (4, turning, ""),
    "local SGD": (4, all_of(0, 1, 2, 3), "no majority agrees"),
    "local SGD, of two": (2, all_of(0, 1), "most of them do"),
    "one tensor of each": (3, flipped(0, 1, 2), "no majority agrees"),
    "two halves": (4, flipped(0, 1, place=1), "no majority agrees"),
    "two kinds of devices": (8, all_of(5, 6, 7), "too many ranks"),
    "the script writes on one rank": (4, wrote(2), "writes to them on some ranks"),
    "the script writes on one of two": (2, wrote(1), "writes to them on some ranks"),
    "if rank == 0": (4, all_of(0), "most of rank 0's do"),
    "never equal": (4, flipped(1, since=0), "in the first check"),
    "never equal, of two": (2, flipped(1, since=0), "in the first check"),
}


@pytest.mark.parametrize("name", LET_BE)
def test_what_a_script_lets_differ_is_a_remark_at_most(told: Told, name: str) -> None:
    ranks, change, why = LET_BE[name]
    replicas = Replicas(told, ranks).go(change)
    assert told.incidents == {}
    assert len(replicas.remarks) == bool(why) and all(why in text for text in replicas.remarks), replicas.said


def test_ranks_that_always_write_differently_are_compared_all_the_same(told: Told) -> None:
    assert culprits(only(Replicas(told, 4).go(parted).told)) == [2]


def test_what_is_let_differ_hides_nothing_else(told: Told) -> None:
    def both(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
        flipped(0, 1, 2, 3, place=5, since=0)(sums, writes, count)
        flipped(2, place=3, since=600)(sums, writes, count)

    assert culprits(only(Replicas(told, 4).go(both).told)) == [2]


def test_a_check_that_a_rank_lacks_is_not_compared(told: Told) -> None:
    replicas = Replicas(told, 4).go(nothing, until=60)
    for count, is_echo in CHECKS[2:]:
        replicas.check(count, is_echo, flipped(2), silent=(3,))
    assert told.incidents == {}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_checks_half_as_often_does_not_write_differently_for_that(told: Told, ranks: int) -> None:
    replicas = Replicas(told, ranks).go(nothing, until=60)
    replicas.check(500, False, nothing)
    replicas.check(510, True, nothing, silent=(1,))
    replicas.check(1000, False, flipped(1, since=600))
    replicas.check(1010, True, flipped(1, since=600))
    assert culprits(only(told)) == ([1] if ranks > 2 else []) and replicas.remarks == []


def test_other_tensors_are_not_compared_and_begin_anew(told: Told) -> None:
    """A parameter is added in mid-run, on one rank sooner than on others."""
    replicas = Replicas(told, 4).go(nothing, until=60)

    def added(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
        for rank in sums if count > 500 else [0]:
            sums[rank].append(rank)

    replicas.check(500, False, added)
    replicas.check(510, True, added)
    replicas.check(1000, False, added)
    assert told.incidents == {} and len(replicas.remarks) == 1 and "first check" in replicas.remarks[0]


def test_numbers_that_are_none_are_told_already(told: Told) -> None:
    replicas = Replicas(told, 2).go(nothing, until=60)
    for last in (100, 104, 108):
        odd = [ev.OddStep(last - 3 + n, None, None, 9, 0.0, 0.0, n) for n in range(4)]
        for rank in range(2):
            metrics = ev.TrainingMetrics(first=last - 3, last=last, nonfinite=last - 96, odd=odd)
            report = ev.RankReport(global_rank=rank, progress=last, step=last, metrics=metrics)
            told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=[report]), told.now_s + 5.0)
    assert only(told).cause == "nan_loss"
    for count, is_echo in CHECKS[2:]:
        replicas.check(count, is_echo, flipped(1))
    assert only(told).cause == "nan_loss"


def test_what_no_hook_writes_is_left_alone(told: Told) -> None:
    """A rank may write anything into its page."""
    Replicas(told, 2).go(nothing, until=60)
    for kind, digests in ((0, "zz"), (0, ""), (0, "00" * 4000), (7, "00"), (1, "0")):
        for rank in range(2):
            check = ev.ReplicaCheck("a1", kind, 2, 400 + kind, 400, digests=digests + str(rank) * 2, tensors=10**9)
            report = ev.RankReport(global_rank=rank, progress=400, step=400, replicas=[check])
            told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=[report]), told.now_s + 0.1)
    for number in range(200):
        check = ev.ReplicaCheck(f"b{number}", 0, 10**6, number, number, digests="00000000", tensors=1)
        report = ev.RankReport(global_rank=0, progress=400, step=400, replicas=[check])
        told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=[report]), told.now_s + 0.1)
    assert told.incidents == {} and len(told.state.detectors.numeric.replica_divergence.sets) <= 64
