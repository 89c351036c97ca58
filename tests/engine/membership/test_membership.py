"""Who takes part in the next attempt, asked of the function that says so: nothing here runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.membership.membership import Membership, Options, compute_membership
from guardrun.supervisor.engine.model.events import FleetPlan
from guardrun.supervisor.engine.state.job_nodes import Member, Standing

SINCE_S, LAST_CALL_S, TIMEOUT_S = 1000.0, 30.0, 600.0
EARLY_S, LATE_S = SINCE_S + 1.0, SINCE_S + LAST_CALL_S
LEFT_OUT = {"silent": Standing.SILENT, "lost": Standing.LOST, "out": Standing.OUT, "left": Standing.LEFT}


def node(order: int, name: str, *words: str) -> Member:
    """One row's node. words: how it stands (else it is ready), `x4` ranks, `/leaf` its switch, `#1` its order, …"""
    fields: dict[str, Any] = {"node": name, "order": order, "ranks": 2}
    for word in words:
        if word in LEFT_OUT:
            fields |= {"standing": LEFT_OUT[word]}
        elif word.startswith("x"):
            fields["ranks"] = int(word[1:])
        elif word.startswith("/"):
            fields["switches"] = ["top", word[1:]]
        elif word.startswith("#"):
            fields["order"] = int(word[1:])
        elif word == "spare":  # no scheduler has numbered it
            fields["order"] = 1_000_000 + order
        else:
            fields |= {"drained": {"drained": "disk; root"}, "is_cut": {"is_cut": True}, "refused": {"refused": 69}}[
                word
            ]
    return msgspec.convert(fields, Member)


def compute(nodes: str, wanted: str, before: str, now_s: float) -> Membership:
    """nodes: `a, b silent, c x4 drained`, in the scheduler's order; wanted: `LEAST..MOST+SPARES`."""
    members = {}
    for order, words in enumerate(nodes.split(", ")):
        name, *rest = words.split()
        members[name] = node(order, name, *rest)
    least, _, rest_of = wanted.partition("..")
    most, _, spares = rest_of.partition("+")
    plan = FleetPlan(least=int(least), most=int(most), spares=int(spares or 0))
    options = Options(
        plan=plan, before=before.split(), since_s=SINCE_S, last_call_s=LAST_CALL_S, join_timeout_s=TIMEOUT_S
    )
    return compute_membership(now_s, members, options)


E, L = EARLY_S, LATE_S
START, LAST_CALL, OVER = None, SINCE_S + LAST_CALL_S, SINCE_S + TIMEOUT_S


class Row(NamedTuple):
    what: str
    nodes: str
    wanted: str
    before: str
    now_s: float
    members: str
    spares: str
    until_s: float | None


ROWS = [
    # What it is about | nodes | wanted | before | now | members | spares | until when they wait
    Row("nobody else has joined", "a", "2..2", "", E, "", "a", LAST_CALL),
    Row("all that are wanted are there", "a, b", "2..2", "", E, "a b", "", START),
    Row("the order is the scheduler's, not that of joining", "b #1, a #0", "2..2", "", E, "a b", "", START),
    Row("a spare waits", "a, b, c spare", "2..2+1", "", E, "a b", "c", START),
    Row("a spare was quicker than the second node", "a, c spare", "2..2+1", "", E, "", "a c", LAST_CALL),
    Row("the second node does not come", "a, c spare", "2..2+1", "", L, "a c", "", START),
    Row("neither the second node nor a spare", "a", "2..2+1", "", L, "", "a", OVER),
    Row("nobody comes any more", "a", "2..2", "", OVER + 1.0, "", "a", OVER),
    Row("nobody is there", "a left", "1..2", "", E, "", "", LAST_CALL),
    # MIN..MAX
    Row("fewer would do, others may come", "a, b", "2..3", "", E, "", "a b", LAST_CALL),
    Row("fewer do, by the last call", "a, b", "2..3", "", L, "a b", "", START),
    Row("fewer do at once where nobody else can come", "a, b, c left refused", "2..3", "", E, "a b", "", START),
    Row("fewer than the fewest", "a, b", "3..4", "", L, "", "a b", OVER),
    Row("as many as possible", "a, b, c, d", "2..3", "", E, "a b c", "d", START),
    Row("it shrinks at once where all others are known to be gone", "a, b out", "1..2", "a b", E, "a", "", START),
    Row("it shrinks by the last call where one may be back", "a, b silent", "1..2", "a b", E, "", "a", LAST_CALL),
    Row("it does, and the silent one is not back", "a, b silent", "1..2", "a b", L, "a", "", START),
    Row("it grows again", "a, b", "1..2", "a", E, "a b", "", START),
    # Gone
    Row("one is lost, a spare takes its place", "a, b lost, c", "2..2+1", "a b", E, "a c", "", START),
    Row("a place is kept, not moved up", "a lost, b, c", "2..2+1", "a b", E, "c b", "", START),
    Row("both places", "a lost, b out, c, d", "2..2+2", "a b", E, "c d", "", START),
    Row("lost without a spare", "a, b lost", "2..2", "a b", E, "", "a", LAST_CALL),
    Row("lost, and waited for beyond the last call", "a, b lost", "2..2", "a b", L, "", "a", OVER),
    Row("the head was cut off from it: it may be back", "a, b lost is_cut", "1..2", "a b", E, "", "a", LAST_CALL),
    Row("lost by itself: nobody waits", "a, b lost", "1..2", "a b", E, "a", "", START),
    Row("its guardrun has ended: another may be started", "a, b left", "1..2", "a b", E, "", "a", LAST_CALL),
    Row("its guardrun was refused for good", "a, b left refused", "1..2", "a b", E, "a", "", START),
    Row("a silent node is no member", "a, b silent, c", "2..2+1", "a b", E, "a c", "", START),
    Row("a silent node that is not needed", "a, b, c silent", "2..2+1", "a b", E, "a b", "", START),
    Row("quarantined before the first attempt", "a, b out, c spare", "2..2+1", "", L, "a c", "", START),
    Row("who was out is ready again: a spare", "a, b, c", "2..2+1", "a c", E, "a c", "b", START),
    # Drained by somebody
    Row("a drained node gives way", "a, b drained, c", "2..2+1", "a b", E, "a c", "b", START),
    Row("not to a node of another size", "a, b drained, c x4", "2..2+1", "a b", E, "a b", "c", START),
    Row("not where it is needed", "a, b drained, c lost", "2..2+1", "a b", E, "a b", "", START),
    Row("a drained spare is taken last", "a, b lost, c drained, d", "2..2+2", "a b", E, "a d", "c", START),
    Row("and rather than none", "a, b lost, c drained", "2..2+1", "a b", E, "a c", "", START),
    Row("a first attempt without it", "a drained, b, c", "2..2+1", "", L, "b c", "a", START),
    # Sizes
    Row("as many ranks before the scheduler's order", "a, b lost, c x4, d", "2..2+2", "a b", E, "a d", "c", START),
    Row("another size rather than none", "a, b lost, c x4", "2..2+1", "a b", E, "a c", "", START),
    Row(
        "as many ranks before not drained",
        "a, b lost, c x4, d drained",
        "2..2+2",
        "a b",
        E,
        "a d",
        "c",
        START,
    ),
    Row("each place its size", "a lost, b lost x4, c x4, d", "2..2+2", "a b", E, "d c", "", START),
    Row("it grows by those of the usual size", "a, b, c x4, d", "1..3+1", "a b", E, "a b d", "c", START),
    Row("the first attempt takes any size", "a, b x4", "2..2", "", E, "a b", "", START),
    # Switches
    Row("of one switch side by side", "a /l1, b /l2, c /l1, d /l2", "4..4", "", E, "a c b d", "", START),
    Row("not after the first attempt", "a /l1, b /l2, c /l1", "3..3", "a b c", E, "a b c", "", START),
    Row("the nearest takes its place", "a /l1, b /l2 lost, c /l1, d /l2", "2..2+2", "a b", E, "a d", "c", START),
    Row("not where its size is another", "a /l1, b /l2 lost, c /l1, d /l2 x4", "2..2+2", "a b", E, "a c", "d", START),
    Row("nor where it is drained", "a /l1, b /l2 lost, c /l1, d /l2 drained", "2..2+2", "a b", E, "a c", "d", START),
    Row("the first, where nothing is known", "a, b lost, c, d", "2..2+2", "a b", E, "a c", "d", START),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_who_takes_part(row: Row) -> None:
    found = compute(row.nodes, row.wanted, row.before, row.now_s)
    assert (" ".join(found.members), " ".join(found.spares)) == (row.members, row.spares)
    assert found.wait_until_s == row.until_s


def test_who_is_left_out_is_so_for_a_reason() -> None:
    names = ["a", "b", "c", "d", "e"]
    members = {name: node(order, name) for order, name in enumerate(names)}
    members["b"].standing, members["b"].why = Standing.OUT, "incident 003: gpu_lost"
    members["c"].standing, members["c"].why = Standing.LOST, "nothing has been heard of it for 25 s"
    members["d"].standing = Standing.SILENT
    options = Options(plan=FleetPlan(least=2, most=2), last_call_s=LAST_CALL_S, join_timeout_s=TIMEOUT_S)
    found = compute_membership(LATE_S, members, options)
    assert found.members == ["a", "e"]
    assert found.left_out == {
        "b": "incident 003: gpu_lost",
        "c": "nothing has been heard of it for 25 s",
        "d": "silent",
    }


@pytest.mark.parametrize(
    ("nodes", "wanted", "may_suffice"),
    [
        ("a", "2..2", True),
        ("a, b left", "2..2", True),  # its guardrun may be started again
        ("a, b left refused", "2..2", False),
        ("a, b left refused", "2..2+1", True),  # a spare is still to come
        ("a, b out", "2..2", False),
        ("a, b out", "1..2", True),
        ("a, b silent", "2..2", True),
        ("a, b lost", "2..2", False),
    ],
)
def test_waiting_is_in_vain_where_too_few_can_come(nodes: str, wanted: str, may_suffice: bool) -> None:
    assert compute(nodes, wanted, "", EARLY_S).may_suffice is may_suffice


@pytest.mark.parametrize(
    ("last_call_s", "now_s", "until_s"),
    [(30.0, 0.0, 30.0), (30.0, 30.0, 600.0), (30.0, 900.0, 600.0), (600.0, 0.0, 600.0), (900.0, 0.0, 600.0)],
)
def test_they_wait_for_the_last_call_and_then_for_the_end(last_call_s: float, now_s: float, until_s: float) -> None:
    options = Options(plan=FleetPlan(least=2, most=2), last_call_s=last_call_s, join_timeout_s=600.0)
    assert compute_membership(now_s, {"a": node(0, "a")}, options).wait_until_s == until_s


# Whatever the nodes --------------------------------------------------------------------------------------


@st.composite
def questions(draw: st.DrawFn) -> tuple[float, dict[str, Member], Options]:
    """Nodes of any standing and size, drained or not, below any switch; any of them in the attempt before."""
    count, most = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    standing = st.sampled_from([Standing.READY, Standing.READY, Standing.READY, *Standing])
    members = {
        f"n{order}": Member(
            node=f"n{order}",
            order=order,
            ranks=draw(st.sampled_from([1, 2, 2, 4])),
            standing=draw(standing),
            drained=draw(st.sampled_from(["", "", "why"])),
            switches=draw(st.sampled_from([[], ["t", "a"], ["t", "b"]])),
            is_cut=draw(st.booleans()),
        )
        for order in range(count)
    }
    before = draw(st.lists(st.sampled_from(sorted(members)), unique=True, max_size=most))
    plan = FleetPlan(least=draw(st.integers(1, most)), most=most, spares=draw(st.integers(0, 3)))
    options = Options(plan=plan, before=before, since_s=SINCE_S, last_call_s=LAST_CALL_S, join_timeout_s=TIMEOUT_S)
    return draw(st.sampled_from([EARLY_S, LATE_S, OVER])), members, options


@given(questions())
def test_everybody_is_in_one_place_and_the_function_changes_nothing(
    question: tuple[float, dict[str, Member], Options],
) -> None:
    now_s, members, options = question
    before = msgspec.json.encode((members, options))
    found = compute_membership(now_s, members, options)
    assert msgspec.json.encode((members, options)) == before
    assert compute_membership(now_s, members, options) == found
    assert sorted([*found.members, *found.spares, *found.left_out]) == sorted(members)
    ready = {one.node for one in members.values() if one.standing is Standing.READY}
    assert set(found.ready) == ready and all(found.left_out.values())
    assert not found.members or options.plan.least <= len(found.members) <= options.plan.most
    assert (found.wait_until_s is None) is bool(found.members)
    assert found.may_suffice or not found.members


@given(questions())
def test_by_the_last_call_as_many_train_as_may_and_only_who_must_is_replaced(
    question: tuple[float, dict[str, Member], Options],
) -> None:
    _, members, options = question
    found = compute_membership(LATE_S, members, options)
    ready, most = set(found.ready), options.plan.most
    if len(ready) < options.plan.least:
        assert not found.members
        return
    assert len(found.members) == min(most, len(ready))
    if len({members[name].ranks for name in members}) == 1:
        well = {name for name in ready if not members[name].drained}
        assert len(well.intersection(found.members)) == min(len(found.members), len(well)), "the drained come last"
    if len(options.before) != len(found.members):
        return
    for old, new in zip(options.before, found.members, strict=True):
        assert old == new or old not in ready or (members[old].drained and not members[new].drained)
        left_over = [members[name].ranks for name in found.spares]
        changes_size = members[old].ranks != members[new].ranks
        assert not changes_size or (old not in ready and members[old].ranks not in left_over)
