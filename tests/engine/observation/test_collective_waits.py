"""The matcher: mismatches, missing ranks, sub-groups, circles; and what is not told."""

from __future__ import annotations

import time

import pytest

from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.collective_calls import call_text, family, group_text, meet
from guardrun.supervisor.engine.observation.collective_waits import CIRCLE, SIDES, match

LINE = Frame("train", "/home/me/train.py", 60)
OTHER_LINE = Frame("log_metrics", "/home/me/train.py", 73)


def call(seq: int, op: str = "all_reduce", size: int = 512, *, done: bool = True, frame: Frame | None = LINE) -> Call:
    return Call(seq, op, [[size]], "float32", "completed" if done else "issued", float(seq), frame)


def group(name: str, ranks: list[int], *calls: Call) -> GroupLook:
    completed = max((c.seq for c in calls if c.state == "completed"), default=0)
    return GroupLook(
        name=name, ranks=ranks, issued=max((c.seq for c in calls), default=0), completed=completed, calls=list(calls)
    )


def look(rank: int, *groups: GroupLook) -> RankLook:
    return RankLook(global_rank=rank, at_s=100.0, process=ProcessLook(pid=1000 + rank), groups=list(groups))


def test_nothing_told_says_nothing() -> None:
    found = match([look(0), look(1)])
    assert (found.waits, found.roots, found.mismatch, found.is_all_in) == ([], [], None, False)
    assert match([]).waits == []


def test_a_rank_that_never_arrived_is_the_root() -> None:
    world = [0, 1, 2, 3]
    looks = [look(r, group("0", world, call(1), call(2, done=False))) for r in (0, 1, 3)]
    found = match([*looks, look(2, group("0", world, call(1)))])
    assert found.roots == [2]
    assert [(wait.ranks, wait.waits_for, wait.seq, wait.op) for wait in found.waits] == [
        ([0, 1, 3], [2], 2, "all_reduce")
    ]
    assert found.mismatch is None and not found.is_all_in


def test_a_member_of_which_nothing_is_known_is_not_blamed() -> None:
    found = match([look(0, group("0", [0, 1], call(1, done=False)))])
    assert found.roots == []
    assert found.waits[0].unseen == [1]
    assert not found.is_all_in


def test_all_in_the_same_call_is_nobodys_mismatch() -> None:
    found = match([look(r, group("0", [0, 1], call(1), call(2, done=False))) for r in (0, 1)])
    assert found.is_all_in and found.mismatch is None and found.roots == []


def test_waits_are_followed_through_sub_groups_to_the_root() -> None:
    """2 x 2: tensor groups 0-1 and 2-3, data groups 0-2 and 1-3. Rank 3 sleeps: 2 waits for it, and 0 for 2."""
    looks = [
        look(0, group("tp0", [0, 1], call(5)), group("dp0", [0, 2], call(3, done=False))),
        look(1, group("tp0", [0, 1], call(5)), group("dp1", [1, 3], call(3, done=False))),
        look(2, group("tp1", [2, 3], call(5, done=False)), group("dp0", [0, 2], call(2))),
        look(3, group("tp1", [2, 3], call(4)), group("dp1", [1, 3], call(2))),
    ]
    found = match(looks)
    assert found.roots == [3]
    assert {tuple(w.ranks): w.waits_for for w in found.waits} == {(0,): [2], (1,): [3], (2,): [3]}


def test_the_minority_is_wrong_about_an_operation() -> None:
    world = [0, 1, 2]
    looks = [look(r, group("0", world, call(1), call(2, done=False))) for r in (0, 2)]
    found = match([*looks, look(1, group("0", world, call(1), call(2, "barrier", done=False, frame=OTHER_LINE)))])
    assert found.mismatch is not None
    assert (found.mismatch.form, found.mismatch.culprits) == (SIDES, [1])
    assert [side.ranks for side in found.mismatch.sides] == [[0, 2], [1]]


@pytest.mark.parametrize("size", [256, 1024])
def test_other_sizes_are_a_mismatch_where_they_must_be_equal(size: int) -> None:
    found = match(
        [look(0, group("0", [0, 1], call(1, done=False))), look(1, group("0", [0, 1], call(1, size=size, done=False)))]
    )
    assert found.mismatch is not None and found.mismatch.culprits == []
    assert "cannot be told" in found.mismatch.why


def cycles(rank: int, rounds: int, *, skips: str = "") -> tuple[GroupLook, GroupLook, float]:
    """Rounds of: all_reduce in the tensor group, two in the data group. skips: a group left out of one round more."""
    tensor: list[Call] = []
    data: list[Call] = []
    at_s = 0.0
    for number in range(rounds + bool(skips)):
        for name, calls, count in (("tp", tensor, 1), ("dp", data, 2)):
            if number == rounds and name == skips:
                continue
            for nth in range(count):
                at_s += 1
                frame = Frame(name, "/home/me/train.py", 20 + nth)
                calls.append(Call(len(calls) + 1, "all_reduce", [[8]], "float32", "completed", at_s, frame))
    return group("tp", [0, 1], *tensor), group("dp", [0, 1], *data), at_s


def then(told: GroupLook, at_s: float, function: str, line: int, op: str = "all_reduce") -> GroupLook:
    """The same, with one call more, which is under way."""
    frame = Frame(function, "/home/me/train.py", line)
    call = Call(told.issued + 1, op, [[8]], "float32", "issued", at_s, frame)
    return group(told.name, told.ranks, *told.calls, call)


def test_of_two_the_one_that_left_its_own_order_is_wrong() -> None:
    """Each round: tensor, data, data. Rank 1 leaves the tensor group's call out of its fifth round."""
    tensor, data, at_s = cycles(0, 5)
    odd_tensor, odd_data, odd_at_s = cycles(1, 4, skips="tp")
    found = match(
        [
            look(0, then(tensor, at_s + 1, "tp", 20), data),
            look(1, odd_tensor, then(odd_data, odd_at_s + 1, "save", 47, "barrier")),
        ]
    )
    assert found.mismatch is not None
    assert (found.mismatch.form, found.mismatch.culprits) == (CIRCLE, [1])
    assert "other calls followed" in found.mismatch.why


def test_groups_are_compared_from_where_all_of_them_are_known() -> None:
    """Of the busier group fewer rounds are kept: that it is missing before says nothing."""
    tensor, data, at_s = cycles(0, 12)
    odd_tensor, odd_data, odd_at_s = cycles(1, 11, skips="tp")
    short, odd_short = (group("dp", [0, 1], *told.calls[-10:]) for told in (data, odd_data))
    looks = [
        look(0, then(tensor, at_s + 1, "tp", 20), short),
        look(1, odd_tensor, then(odd_short, odd_at_s + 1, "save", 47, "barrier")),
    ]
    found = match(looks)
    assert found.mismatch is not None and found.mismatch.culprits == [1]


def test_what_comes_seldom_convicts_nobody() -> None:
    """After steps like any other comes a save: rank 0 gathers once more for it, rank 1 is at its barrier."""
    steps = [c for n in range(1, 9, 2) for c in (call(n), call(n + 1, "all_gather", frame=None))]
    save = call(9, "all_gather", 64, frame=OTHER_LINE)
    looks = [
        look(0, group("0", [0, 1], *steps, save, call(10, "all_gather", 64, done=False, frame=OTHER_LINE))),
        look(1, group("0", [0, 1], *steps, save, call(10, "barrier", done=False, frame=Frame("save", "/t.py", 9)))),
    ]
    found = match(looks)
    assert found.mismatch is not None and found.mismatch.culprits == []


def test_torchs_own_calls_which_look_alike_convict_nobody() -> None:
    steps = [call(n, "all_gather", frame=None) for n in range(1, 9)]
    looks = [
        look(0, group("0", [0, 1], *steps, call(9, "all_gather", done=False, frame=None))),
        look(1, group("0", [0, 1], *steps, call(9, "barrier", done=False, frame=OTHER_LINE))),
    ]
    found = match(looks)
    assert found.mismatch is not None and found.mismatch.culprits == []


def test_a_broadcast_that_its_source_has_left_is_still_found() -> None:
    """A source need not wait for its receivers: it is past the call that the others took for another."""
    looks = [
        look(0, group("0", [0, 1], call(1, "broadcast"), call(2, done=False))),
        look(1, group("0", [0, 1], call(1, "all_reduce", done=False))),
    ]
    found = match(looks)
    assert found.mismatch is not None and found.mismatch.sides[0].call.seq == 1
    assert not found.mismatch.is_pending, "one side has completed it: that is no proof that the other never will"


def test_groups_entered_in_different_orders_are_a_circle() -> None:
    looks = [
        look(0, group("a", [0, 1], call(4, done=False)), group("b", [0, 1], call(3))),
        look(1, group("a", [0, 1], call(3)), group("b", [0, 1], call(4, done=False))),
    ]
    found = match(looks)
    assert found.roots == []
    assert found.mismatch is not None and found.mismatch.form == CIRCLE
    assert {tuple(side.ranks) for side in found.mismatch.sides} == {(0,), (1,)}


def test_receives_wait_for_their_peers() -> None:
    def receive(peer: int) -> Call:
        return Call(1, "recv", [[8]], "float32", "issued", 1.0, LINE, peer)

    found = match(
        [
            look(0, group("0", [0, 1, 2], receive(1))),
            look(1, group("0", [0, 1, 2], receive(2))),
            look(2, group("0", [0, 1, 2])),
        ]
    )
    assert found.roots == [2]
    circle = match([look(0, group("0", [0, 1], receive(1))), look(1, group("0", [0, 1], receive(0)))])
    assert circle.mismatch is not None and circle.mismatch.form == CIRCLE and circle.mismatch.culprits == []


def test_pending_calls_of_an_earlier_bucket_come_first() -> None:
    """DDP issues all its buckets: the one that lacks somebody holds the rank up."""
    full = [call(n, done=False) for n in (1, 2, 3)]
    found = match(
        [look(0, group("0", [0, 1], *full)), look(1, group("0", [0, 1], call(1, done=False), call(2, done=False)))]
    )
    assert found.roots == []
    assert found.is_all_in and found.waits[0].seq == 1


def test_groups_with_one_name_and_other_members_are_told_apart() -> None:
    looks = [
        look(0, group("tp", [0, 1], call(2, done=False))),
        look(1, group("tp", [0, 1], call(1))),
        look(2, group("tp", [2, 3], call(9))),
        look(3, group("tp", [2, 3], call(9))),
    ]
    assert match(looks).roots == [1]


def test_uneven_shapes_are_legal_where_torch_allows_them() -> None:
    assert meet(Call(1, "all_to_all_single", [[4]]), Call(1, "all_to_all_single", [[9]]))
    assert meet(Call(1, "reduce_scatter", [[4], [5]]), Call(1, "reduce_scatter", [[9], [1]]), "nccl")
    for backend in ("nccl", "xccl", ""):
        assert meet(Call(1, "all_gather", [[5, 8]]), Call(1, "all_gather", [[7, 8]]), backend)
    assert not meet(Call(1, "all_gather", [[5, 8]]), Call(1, "all_gather", [[7, 8]]), "gloo")
    assert not meet(Call(1, "all_gather_into_tensor", [[5]]), Call(1, "all_gather_into_tensor", [[7]]), "nccl")
    assert not meet(Call(1, "reduce_scatter_tensor", [[5]]), Call(1, "reduce_scatter_tensor", [[7]]), "nccl")
    assert meet(Call(1, "all_reduce", [[2, 3]], "float32"), Call(1, "all_reduce", [[6]], "float32"))
    assert meet(Call(1, "all_reduce"), Call(1, "all_reduce", [[6]], "float32"))
    assert not meet(Call(1, "all_reduce", [[6]], "float32"), Call(1, "all_reduce", [[6]], "float64"))
    assert not meet(Call(1, "barrier"), Call(1, "all_reduce"))


def test_names_of_operations_are_brought_to_one() -> None:
    assert family("all_gather_into_tensor") == family("all_gather_object") == family("_allgather_base") == "all_gather"
    assert family("reduce_scatter_tensor") == "reduce_scatter"
    assert family("broadcast_object_list") == "broadcast"


def test_words() -> None:
    assert call_text(call(1)) == "all_reduce of [512] float32 (train.py:60)"
    assert call_text(Call(1, "barrier")) == "barrier"
    assert group_text("0", "default_pg") == "the default group"
    assert group_text("3", "mesh_tp") == "group mesh_tp"
    assert group_text("3", "undefined") == "group 3"


def test_a_thousand_ranks_are_matched_in_time() -> None:
    """1,024 ranks in groups of 8 and of 128, one missing."""
    looks = []
    for rank in range(1024):
        tensor, data = list(range(rank // 8 * 8, rank // 8 * 8 + 8)), list(range(rank % 8, 1024, 8))
        is_sick, is_mate = rank == 517, rank // 8 == 517 // 8
        groups = [
            group(
                f"tp{rank // 8}",
                tensor,
                *[call(n) for n in range(1, 8)],
                *([] if is_sick or not is_mate else [call(8, done=False)]),
            ),
            group(f"dp{rank % 8}", data, *[call(n) for n in range(1, 8)], *([] if is_mate else [call(8, done=False)])),
        ]
        looks.append(look(rank, *groups))
    began = time.process_time()
    found = match(looks)
    assert time.process_time() - began < 2.0
    assert found.roots == [517]
    assert found.mismatch is None
