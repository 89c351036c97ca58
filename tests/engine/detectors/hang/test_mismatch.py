"""Collectives that can never meet: seen within seconds, told with both sides; and what only looks like them."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, ProcessLook, RankLook, ThreadLook
from tests.engine.conftest import Told, kinds

STEP_LINE = Frame("train", "/home/me/train.py", 60)
ODD_LINE = Frame("log_metrics", "/home/me/train.py", 73)
WORLD = [0, 1, 2]


def in_call(
    op: str = "all_reduce", seq: int = 61, frame: Frame = STEP_LINE
) -> tuple[list[Frame], str, list[GroupLook]]:
    """What a rank shows that waits in a collective: its stack, the function, its groups."""
    stack = [Frame(op, "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 100), frame]
    done = [Call(n, "all_reduce", [[512]], "float32", "completed", float(n), STEP_LINE) for n in range(seq - 3, seq)]
    call = Call(seq, op, [[512]] if op != "barrier" else [], "float32", "issued", float(seq), frame)
    return stack, op, [GroupLook(name="0", desc="default_pg", ranks=WORLD, issued=seq, calls=[*done, call])]


def asleep() -> tuple[list[Frame], str, list[GroupLook]]:
    done = [Call(n, "all_reduce", [[512]], "float32", "completed", float(n), STEP_LINE) for n in range(58, 61)]
    return [Frame("fetch", "/home/me/train.py", 90)], "", [GroupLook(name="0", ranks=WORLD, issued=60, calls=done)]


def look(
    told: Told, *shown: tuple[list[Frame], str, list[GroupLook]], at_s: float, cpu: float = 0.0
) -> list[ac.Action]:
    looks = []
    for rank, (stack, op, groups) in enumerate(shown):
        cpu_s = cpu * at_s if not op else 0.0
        process = ProcessLook(
            pid=100 + rank, state="S", cpu_s=cpu_s, threads=[ThreadLook(tid=7, is_main=True, frames=stack, cpu_s=cpu_s)]
        )
        looks.append(
            RankLook(
                global_rank=rank,
                at_s=at_s,
                process=process,
                heart_s=at_s,
                in_collective=op,
                group_seq=61,
                groups=groups,
            )
        )
    return told.tell(
        ev.LookTaken(look=told.state.detectors.hang.look, attempt=told.attempt, ranks=looks, folder=f"looks/{at_s}"),
        at_s,
    )


def waits(told: Told, at_s: float, *ranks: int) -> None:
    """Ranks report that they have been in one collective since the last step."""
    assert told.state.attempt is not None
    step, since_s = told.state.attempt.step, told.state.attempt.progress_s
    reports = [
        ev.RankReport(global_rank=r, progress=step, progress_s=since_s, step=step, waits_since_s=since_s) for r in ranks
    ]
    told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=reports), at_s)


def look_until(told: Told, *shown: tuple[list[Frame], str, list[GroupLook]], limit_s: float) -> list[ac.Action]:
    """Answer look after look with the same until something is decided, or limit_s."""
    while (due_s := told.engine.next_deadline_s()) is not None and due_s < limit_s:
        if any(isinstance(action, ac.TakeLook) for action in told.tick()):
            actions = look(told, *shown, at_s=told.now_s + 0.2)
            if "StopAttempt" in kinds(actions):
                return actions
    return []


def test_a_mismatch_is_acted_on_within_seconds_and_names_both_sides(told: Told) -> None:
    told.running(3)
    waits(told, 4.5, 0, 1, 2)
    actions = look_until(told, in_call(), in_call("barrier", frame=ODD_LINE), in_call(), limit_s=12.0)
    assert "StopAttempt" in kinds(actions)
    assert told.now_s < 10.0, "proof waits for no floor"
    incident = told.incidents["001"]
    assert (incident.cause, [c.rank for c in incident.culprits]) == ("collective_mismatch", [1])
    assert incident.summary == (
        "Rank 1 on node-a is in barrier (train.py:73) while ranks 0,2 are in all_reduce of [512] float32 (train.py:60)"
        f", as call 61 of the default group: they can never meet, {told.now_s - 2.0:.0f} s without progress."
    )
    rows = incident.evidence["collectives"]["rows"]
    assert [(row["op"], row["ranks"]) for row in rows if row["is_odd"]] == [("all_reduce", "0,2"), ("barrier", "1")]


def test_of_two_sides_alike_nobody_is_named(told: Told) -> None:
    told.running(2)
    waits(told, 4.5, 0, 1)
    _, _, [other] = in_call(frame=ODD_LINE)
    longer = other.calls[-1]
    wide = GroupLook(
        name="0", ranks=[0, 1], issued=61, calls=[Call(61, "all_reduce", [[9]], "float32", "issued", 61.0)]
    )
    narrow = GroupLook(name="0", ranks=[0, 1], issued=61, calls=[longer])
    stack, op, _ = in_call()
    look_until(told, (stack, op, [narrow]), (stack, op, [wide]), limit_s=12.0)
    incident = told.incidents["001"]
    assert (incident.cause, incident.culprits) == ("collective_mismatch", [])
    assert "which of them is wrong cannot be told" in incident.summary
    assert "rank 1 is in all_reduce of [9] float32" in incident.summary


def test_a_first_step_that_took_long_does_not_delay_it(told: Told) -> None:
    told.running(3)
    for step, at_s in ((11, 7.0), (12, 8.0), (13, 9.0)):
        told.step(step, at_s)
    waits(told, 11.5, 0, 1, 2)
    look_until(told, in_call(), in_call("barrier", frame=ODD_LINE), in_call(), limit_s=30.0)
    assert told.incidents["001"].cause == "collective_mismatch"
    assert told.now_s - 9.0 < 8.0


def test_one_that_sleeps_while_others_wait_is_no_proof_before_the_floor(told: Told) -> None:
    told.running(3)
    waits(told, 4.5, 0, 2)
    assert look_until(told, in_call(), asleep(), in_call(), limit_s=11.0) == []
    assert told.state.detectors.hang.suspicion is None, "no suspicion before the floor without proof"
    actions = look_until(told, in_call(), asleep(), in_call(), limit_s=60.0)
    assert "StopAttempt" in kinds(actions)
    incident = told.incidents["001"]
    assert (incident.cause, [c.rank for c in incident.culprits]) == ("rank_blocked", [1])
    assert 30 < told.now_s < 45
    assert incident.evidence["waits"] == [
        {
            "ranks": [0, 2],
            "for": [1],
            "unseen": [],
            "group": "the default group",
            "seq": 61,
            "op": "all_reduce",
            "where": "train.py:60",
        }
    ]


def test_a_collective_that_all_are_in_is_nobodys_fault(told: Told) -> None:
    told.running(3)
    actions = look_until(told, in_call(), in_call(), in_call(), limit_s=200.0)
    assert "StopAttempt" in kinds(actions)
    assert (told.incidents["001"].cause, told.incidents["001"].culprits) == ("collective_timeout", [])
    assert told.now_s > 100


def test_early_looks_cost_a_healthy_pause_little(told: Told) -> None:
    """Rank 1 evaluates for an hour, the others wait for it all the while: a few looks, and no verdict."""
    told.running(3)
    waits(told, 4.5, 0, 2)
    looks = 0
    stacks = [
        [Frame(f"layer_{n}", "/home/me/model.py", n), Frame("evaluate", "/home/me/train.py", 95)] for n in range(50)
    ]
    while (due_s := told.engine.next_deadline_s()) is not None and due_s < 3600.0:
        if any(isinstance(action, ac.TakeLook) for action in told.tick()):
            looks += 1
            busy = (stacks[looks % 50], "", asleep()[2])
            assert kinds(look(told, in_call(), busy, in_call(), at_s=told.now_s + 0.2, cpu=1.0)) == []
    assert not told.incidents
    assert looks < 100


def test_the_attempt_after_a_mismatch_alone_is_detailed(told: Told) -> None:
    told.running(3)
    waits(told, 4.5, 0, 1, 2)
    look_until(told, in_call(), in_call("barrier", frame=ODD_LINE), in_call(), limit_s=12.0)
    told.stopped()
    [start] = [action for action in told.chosen() if isinstance(action, ac.StartAttempt)]
    assert start.is_detailed
    told.started(1)
    told.step(20, told.now_s + 1)
    told.exits(1, -11)
    told.tick()
    told.read()
    told.stopped()
    [start] = [action for action in told.chosen() if isinstance(action, ac.StartAttempt)]
    assert not start.is_detailed


@pytest.mark.parametrize(
    ("op", "is_detailed"), [("all_gather", False), ("all_to_all_single", False), ("broadcast", True)]
)
def test_no_comparison_where_calls_were_seen_that_may_be_uneven(told: Told, op: str, is_detailed: bool) -> None:
    """torch's own comparison would end a job that all_gathers shards of several sizes over NCCL."""
    told.running(3)
    waits(told, 4.5, 0, 1, 2)
    uneven = Call(40, op, [[5]], "float32", "completed", 40.0, STEP_LINE)

    def with_uneven(shown: tuple[list[Frame], str, list[GroupLook]]) -> tuple[list[Frame], str, list[GroupLook]]:
        stack, called, [group] = shown
        return stack, called, [msgspec.structs.replace(group, calls=[uneven, *group.calls])]

    odd = in_call("barrier", frame=ODD_LINE)
    look_until(told, *map(with_uneven, (in_call(), odd, in_call())), limit_s=12.0)
    assert told.incidents["001"].cause == "collective_mismatch"
    told.stopped()
    [start] = [action for action in told.chosen() if isinstance(action, ac.StartAttempt)]
    assert start.is_detailed is is_detailed


def test_a_mismatch_of_which_one_side_is_past_waits_for_more_than_proof_does(told: Told) -> None:
    """Rank 1 has completed what it called as number 61 and waits in the next call, all others in 61."""
    told.running(3)
    waits(told, 4.5, 0, 1, 2)
    stack, _, [group] = in_call("broadcast", frame=ODD_LINE)
    done = msgspec.structs.replace(group.calls[-1], state="completed")
    following = Call(62, "all_reduce", [[512]], "float32", "issued", 62.0, STEP_LINE)
    past = msgspec.structs.replace(group, issued=62, calls=[*group.calls[:-1], done, following])
    shown = (in_call(), (stack, "all_reduce", [past]), in_call())
    assert look_until(told, *shown, limit_s=40.0) == []
    assert "StopAttempt" in kinds(look_until(told, *shown, limit_s=90.0))
    assert (told.incidents["001"].cause, [c.rank for c in told.incidents["001"].culprits]) == (
        "collective_mismatch",
        [1],
    )


def test_an_attempt_that_dies_of_the_comparison_costs_nothing_and_is_the_last_of_its_kind(told: Told) -> None:
    told.running(3, max_restarts=2)
    for attempt in (0, 2):
        waits(told, told.now_s + 2.5, 0, 1, 2)
        look_until(told, in_call(), in_call("barrier", frame=ODD_LINE), in_call(), limit_s=told.now_s + 12.0)
        told.stopped()
        [start] = [action for action in told.chosen() if isinstance(action, ac.StartAttempt)]
        assert start.is_detailed is (attempt == 0)
        told.started(attempt + 1)
        if attempt == 0:
            told.exits(1, -11)
            told.tick()
            told.read()
            told.stopped()
            [start] = [action for action in told.chosen() if isinstance(action, ac.StartAttempt)]
            assert not start.is_detailed
            assert told.state.restarts == 1
            told.started(2)
            told.step(20, told.now_s + 1)
    assert told.state.restarts == 2


def test_a_group_that_only_one_rank_makes_is_found_within_seconds(told: Told) -> None:
    """Rank 0 is in new_group; the others never call it, and wait for rank 0 in their next all_reduce."""
    told.running(3)
    waits(told, 4.5, 1, 2)
    file = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
    alone = ([Frame("new_group", file, 50), Frame("make_groups", "/home/me/train.py", 12)], "", asleep()[2])
    actions = look_until(told, alone, in_call(), in_call(), limit_s=12.0)
    assert "StopAttempt" in kinds(actions)
    incident = told.incidents["001"]
    assert (incident.cause, incident.culprits) == ("collective_mismatch", [])
    assert "rank 0 waits in new_group at make_groups (train.py:12) for ranks that have gone on" in incident.summary
