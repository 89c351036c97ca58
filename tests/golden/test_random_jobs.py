"""Jobs by chance: whoever stands still is named where all others wait, and nobody else ever is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.hosts import verdict
from tests.golden.random_jobs import GROUPS, MEMBERS, OPS, Step, programs, run
from tests.support.recorder_dumps import RELEASES, Job

RANKS = MEMBERS["world"]
MIXED = dict.fromkeys(MEMBERS, "cpu:gloo,cuda:nccl")
PLACE = st.integers(0, 13)
FEW = settings(max_examples=20)


@FEW
@given(
    steps=programs(),
    rank=st.sampled_from(RANKS),
    place=PLACE,
    host=st.sampled_from(["asleep", "spins"]),
    has_page=st.booleans(),
    torch=st.sampled_from([*RELEASES]),
    is_mixed=st.booleans(),
)
def test_who_stands_still(
    *, steps: list[Step], rank: int, place: int, host: str, has_page: bool, torch: str, is_mixed: bool
) -> None:
    out = run(steps, stops=(rank, place % len(steps)))
    job = Job(out.script, groups=GROUPS, torch=torch, backends=MIXED if is_mixed else {})
    found = verdict(job, {rank: host}, has_page=has_page)[0].found
    if {*out.waiting, rank} == {*RANKS}:
        assert found is not None and found.culprits == [rank]
    assert found is None or found.cause != "collective_mismatch"


@FEW
@given(programs(), PLACE, st.booleans(), st.sampled_from([*RELEASES]), st.sampled_from([32, 3]))
def test_nobody_where_a_link_is_dead(steps: list[Step], place: int, has_page: bool, torch: str, last: int) -> None:
    out = run(steps, dead=place % len(steps))
    found = verdict(Job(out.script, groups=GROUPS, torch=torch), {}, has_page=has_page, last=last)[0].found
    if out.waiting == [*RANKS]:
        assert found is not None
        assert (found.cause, found.culprits) == ("collective_timeout", [])
        assert found.patience_s >= 600
    assert found is None or found.cause != "collective_mismatch"


@FEW
@given(programs(), st.sampled_from(RANKS), st.sampled_from(OPS))
def test_who_calls_something_else(steps: list[Step], rank: int, op: str) -> None:
    steps = [*steps, Step("world", RANKS, op, is_sync=True)]
    out = run(steps, changed=(len(steps) - 1, rank, "broadcast[64]" if "all_reduce" in op else "all_reduce[64]"))
    found = verdict(Job(out.script, groups=GROUPS), {})[0].found
    assert found is not None
    assert (found.cause, found.culprits) == ("collective_mismatch", [rank])
