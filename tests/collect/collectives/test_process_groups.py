"""Putting recorder and calls page together, without either."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.collect.collectives.calls_page import CallsPage, PageCall, PageGroup
from guardrun.supervisor.collect.collectives.flight_recorder import Entry, Trace
from guardrun.supervisor.collect.collectives.process_groups import join
from guardrun.supervisor.engine.model.looks import Frame, GroupLook

WALL_NS = 10**18


def a_group(name: str = "0", **changes: Any) -> PageGroup:
    known = PageGroup(name, "default_pg", [0, 1], "cpu:gloo,cuda:gloo", 0, 0, 0, False)
    return known._replace(**changes)


def a_call(number: int, group: PageGroup, **changes: Any) -> PageCall:
    """The number-th call, a collective that has returned."""
    call = PageCall(
        number=number,
        op="all_reduce",
        group=group,
        before=number - 1,
        after=number,
        at_ns=number * 10**9,
        done_ns=number * 10**9 + 5,
        frame=Frame("step", "train.py", 7),
        peer=-1,
        p2p_number=0,
        sizes=[[4]],
        dtype="float32",
        is_async=False,
        has_returned=True,
        has_raised=False,
        is_waited_for=False,
    )
    return call._replace(**changes)


OPEN = {"after": -1, "done_ns": 0, "has_returned": False}
UNKNOWN = {"done_ns": 0, "is_async": True}


def an_entry(seq: int, **changes: Any) -> Entry:
    told: dict[str, Any] = {
        "group": "0",
        "desc": "default_pg",
        "backend": "gloo",
        "op": "all_reduce",
        "seq": seq,
        "is_p2p": False,
        "p2p_seq": 0,
        "peer": -1,
        "sizes": [[8]],
        "dtype": "float16",
        "is_done": True,
        "created_ns": WALL_NS + seq * 10**9,
    }
    return Entry(**{**told, **changes})


def joined(calls: list[PageCall], entries: list[Entry] | None, *groups: PageGroup, last: int = 6) -> list[GroupLook]:
    page = CallsPage(1, list(groups), calls, -1, 0, "")
    trace = None if entries is None else Trace(entries=entries, members={"0": [5, 6]})
    return join(page, trace, at_ns=lambda ns: ns / 1e9, wall_ns=WALL_NS, last=last)


def states(look: GroupLook) -> list[tuple[int, str]]:
    return [(call.seq, call.state) for call in look.calls]


def test_a_call_that_both_know_has_the_line_and_the_state() -> None:
    group = a_group(issued=2)
    [look] = joined([a_call(1, group), a_call(2, group, **OPEN)], [an_entry(1), an_entry(2, is_done=False)], group)
    assert (look.source, look.ranks, look.issued, look.completed) == ("both", [0, 1], 2, 1)
    assert states(look) == [(1, "completed"), (2, "issued")]
    assert [(call.sizes, call.dtype, call.frame) for call in look.calls] == [
        ([[4]], "float32", Frame("step", "train.py", 7))
    ] * 2


def test_what_only_torch_issues_has_no_line() -> None:
    group = a_group(issued=3)
    [look] = joined([a_call(3, group)], [an_entry(seq) for seq in (1, 2, 3)], group)
    assert [call.frame is None for call in look.calls] == [True, True, False]
    assert [call.sizes for call in look.calls] == [[[8]], [[8]], [[4]]]


def test_a_call_of_several_collectives_covers_their_numbers() -> None:
    group = a_group(issued=2)
    entries = [an_entry(1), an_entry(2), an_entry(3, is_done=False), an_entry(4, is_done=False)]
    calls = [
        a_call(1, group, op="all_gather_object", before=0, after=2, sizes=[]),
        a_call(2, group, op="reduce_scatter", before=2, **OPEN),
    ]
    [look] = joined(calls, entries, group)
    assert [(call.seq, call.op, call.sizes) for call in look.calls] == [
        (1, "all_gather_object", [[8]]),
        (2, "all_gather_object", [[8]]),
        (3, "reduce_scatter", [[4]]),
        (4, "reduce_scatter", [[4]]),
    ]


def test_calls_that_a_coalescing_manager_kept_back_are_none() -> None:
    group = a_group(issued=1)
    [look] = joined([a_call(1, group), a_call(2, group, before=1, after=1)], None, group)
    assert states(look) == [(1, "completed")]


def test_without_a_recorder_the_page_tells_what_it_can() -> None:
    group = a_group(issued=2, issued_by_heart=5)
    [look] = joined([a_call(1, group), a_call(2, group)], None, group)
    assert (look.source, look.issued, look.completed) == ("hooks", 5, -1), "three more by DDP, and who knows how far"
    [look] = joined([a_call(1, group), a_call(2, group)], None, group._replace(issued_by_heart=1))
    assert (look.issued, look.completed) == (2, 2)
    [look] = joined([a_call(1, group), a_call(6, group, **OPEN)], None, group)
    assert (look.issued, look.completed) == (6, 5)


def test_a_receive_under_way_doesn_t_make_the_count_too_high() -> None:
    """torch counts it at once, the hooks at its end."""
    group = a_group(issued=3, issued_by_heart=4)
    receive = a_call(4, group, op="recv", peer=1, p2p_number=2, before=3, **OPEN)
    [look] = joined([receive], None, group)
    assert look.issued == 3
    assert [(call.op, call.seq, call.peer, call.state) for call in look.calls] == [("recv", 2, 1, "issued")]


def test_an_asynchronous_call_is_pending_where_it_is_waited_for() -> None:
    group = a_group(issued=3)
    calls = [a_call(1, group, **UNKNOWN), a_call(2, group, **UNKNOWN, is_waited_for=True), a_call(3, group)]
    [look] = joined(calls, None, group)
    assert states(look) == [(2, "issued"), (3, "completed")]
    [look] = joined(calls, [an_entry(1, is_done=False), an_entry(2, is_done=False), an_entry(3)], group)
    assert states(look) == [(1, "issued"), (2, "issued"), (3, "completed")]


def test_what_nccl_has_been_given_is_not_done() -> None:
    group = a_group(issued=2, backend="cuda:nccl")
    calls = [a_call(1, group), a_call(2, group)]
    [look] = joined(calls, [an_entry(1, backend="nccl"), an_entry(2, backend="nccl", is_done=False)], group)
    assert (look.backend, look.completed) == ("nccl", 1)
    assert states(look) == [(1, "completed"), (2, "issued")]
    [look] = joined(calls, None, group)
    assert (look.backend, look.completed) == ("nccl", -1)


def test_what_a_device_has_begun_with_is_started() -> None:
    group = a_group(issued=1, backend="cuda:nccl")
    [look] = joined([a_call(1, group)], [an_entry(1, backend="nccl", is_done=False, is_started=True)], group)
    assert states(look) == [(1, "started")]


def test_sends_over_nccl_are_done_when_the_recorder_says_so() -> None:
    """The recorder counts those of the group, the page those with one peer: of each peer the last meet the last."""
    group = a_group(backend="nccl", ranks=[0, 1, 2])
    peers = [1, 2, 1, 2, 1]
    calls = [
        a_call(number, group, op="isend", peer=peer, p2p_number=1 + peers[: number - 1].count(peer), is_async=True)
        for number, peer in enumerate(peers, 1)
    ]
    sent = {"backend": "nccl", "op": "send", "is_p2p": True}
    entries = [
        an_entry(0, p2p_seq=number, peer=peer, is_done=number != 4, **sent) for number, peer in enumerate(peers, 1)
    ]
    [look] = joined(calls, entries[1:], group)
    assert [(call.seq, call.peer, call.state) for call in look.calls] == [
        (1, 1, "completed"),
        (1, 2, "completed"),
        (2, 1, "completed"),
        (2, 2, "issued"),
        (3, 1, "completed"),
    ]


def test_a_group_of_two_backends_is_two_groups() -> None:
    """NCCL's count is the page's; gloo's calls, which are more, must not hide that it lacks one."""
    group = a_group(issued=40, backend="cpu:gloo,cuda:nccl")
    gloo = [an_entry(seq, op="gather") for seq in range(295, 301)]
    nccl = [an_entry(39, backend="nccl"), an_entry(40, backend="nccl", is_done=False)]
    calls = [a_call(39, group), a_call(40, group)]
    looks = joined(calls, [*gloo, *nccl], group)
    told = {look.part: (look.backend, look.ranks, look.issued, look.completed) for look in looks}
    assert told == {"nccl": ("nccl", [0, 1], 40, 39), "gloo": ("gloo", [0, 1], 300, 300)}


def test_a_call_that_gloo_has_under_way_is_none_of_nccl_s() -> None:
    group = a_group(issued=40, backend="cpu:gloo,cuda:nccl")
    gloo = an_entry(300, op="barrier", is_done=False)
    barrier = a_call(300, group, op="barrier", before=40, **OPEN)
    looks = joined([a_call(40, group), barrier], [gloo, an_entry(40, backend="nccl")], group)
    told = {look.part: (look.issued, look.completed, states(look)[-1]) for look in looks}
    assert told == {"nccl": (40, 40, (40, "completed")), "gloo": (300, 299, (300, "issued"))}


def test_entries_of_a_destroyed_group_don_t_count() -> None:
    again = a_group(issued=1, made_ns=50 * 10**9, is_anew=True)
    old, new = [an_entry(seq) for seq in range(1, 9)], an_entry(1, created_ns=WALL_NS + 51 * 10**9)
    [look] = joined([], [*old, new], again)
    assert (look.issued, len(look.calls)) == (1, 1)
    [look] = joined([], [*old, an_entry(3, group="gone")], a_group())
    assert (look.name, look.issued) == ("0", 8)


def test_bounds() -> None:
    groups = [a_group(str(number), issued=40) for number in range(40)]
    calls = [a_call(seq, groups[0]) for seq in range(1, 20)]
    calls += [a_call(seq, groups[0], **UNKNOWN) for seq in range(20, 41)]
    calls += [a_call(seq, groups[9], **OPEN) for seq in (1,)]
    entries = [an_entry(seq, is_done=seq < 20) for seq in range(1, 41)]
    looks = joined(calls, entries, *groups, last=3)
    assert len(looks) == 32
    assert {look.name for look in looks[:2]} == {"0", "9"}, "those that wait come first"
    told = next(look for look in looks if look.name == "0")
    assert [call.seq for call in told.calls] == [17, 18, 19, *range(20, 28)]
    assert (told.issued, told.completed) == (40, 19)


@pytest.mark.parametrize("backend", ["mpi", "cpu:gloo,cuda:nccl", ""])
def test_a_backend_that_doesn_t_count_shows_sends_only(backend: str) -> None:
    group = a_group(issued=-1, issued_by_heart=-1, backend=backend)
    send = a_call(2, group, op="send", peer=1, p2p_number=1)
    [look] = joined([a_call(1, group, before=-1, after=-1), send], None, group)
    assert (look.issued, look.completed, states(look)) == (0, -1, [(1, "completed")])
    assert look.backend == ("mpi" if backend == "mpi" else "")
