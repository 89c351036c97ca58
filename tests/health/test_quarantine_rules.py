"""What holds of what was said about a node: each rule by name, then what must be true of any records at all."""

from __future__ import annotations

from functools import reduce

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guardrun.supervisor.health.quarantine_rules import (
    AUTOMATIC,
    EVERYBODY,
    MAX_CLOCK_GAP_S,
    MAX_OF_ONE_USER,
    MAX_PAST,
    MAX_RELEASES,
    Isolation,
    Record,
    Release,
    counting,
    end_of,
    headline,
    holding,
    isolate,
    merge,
    prune,
    release,
)

NOW_S = 10_000.0


def by(who: str, since_s: float, **more: object) -> Isolation:
    return msgspec.structs.replace(Isolation(cause="gpu_xid", who=who, since_wall_s=since_s), **more)


def of(*said: Isolation | Release) -> Record:
    return merge(
        Record(
            isolations=tuple(one for one in said if isinstance(one, Isolation)),
            releases=tuple(one for one in said if isinstance(one, Release)),
        )
    )


OURS = by(AUTOMATIC, 100.0)
ALICES = by("alice", 100.0)


@pytest.mark.parametrize(
    ("said", "is_held"),
    [
        ([], False),
        ([OURS], True),
        ([by(AUTOMATIC, 100.0, until_wall_s=NOW_S)], False),
        ([by(AUTOMATIC, 100.0, until_wall_s=NOW_S + 1)], True),
        ([OURS, Release(who="bob", at_wall_s=200.0)], False),
        ([OURS, Release(who="bob", at_wall_s=50.0)], True),
        ([by(AUTOMATIC, 300.0, evidence_wall_s=150.0), Release(who="bob", at_wall_s=200.0)], False),
        ([by(AUTOMATIC, 300.0), Release(who="bob", at_wall_s=200.0)], True),
        ([ALICES, Release(who="bob", at_wall_s=200.0)], True),
        ([ALICES, Release(who="bob", at_wall_s=200.0, lifts=(ALICES.id,))], False),
        ([ALICES, Release(who=AUTOMATIC, at_wall_s=200.0, lifts=(ALICES.id,))], True),
        ([OURS, Release(who=AUTOMATIC, at_wall_s=200.0, lifts=(OURS.id,))], False),
        ([OURS, Release(who=AUTOMATIC, at_wall_s=200.0)], True),
        ([OURS, Release(who="bob", at_wall_s=NOW_S + 2 * MAX_CLOCK_GAP_S)], True),
        ([OURS, Release(who="bob", at_wall_s=NOW_S + 2 * MAX_CLOCK_GAP_S, lifts=(OURS.id,))], False),
        ([OURS, Release(who="bob", at_wall_s=50.0, lifts=(OURS.id,))], False),
    ],
    ids=[
        "nothing was said",
        "isolated",
        "expired",
        "not expired yet",
        "a person's release",
        "a release before the evidence",
        "the same evidence comes again",
        "newer evidence",
        "another person's isolation, not named",
        "another person's isolation, named",
        "guardrun cannot lift a person's",
        "guardrun lifts its own",
        "guardrun lifts only what it names",
        "a release from the future",
        "a release from the future that names it",
        "the clock was set back before the release",
    ],
)
def test_what_holds(said: list[Isolation | Release], is_held: bool) -> None:
    assert bool(holding(of(*said), NOW_S)) is is_held


def test_guardrun_says_the_same_only_once() -> None:
    record, refused = isolate(Record(), OURS, NOW_S)
    assert (holding(record, NOW_S), refused) == ([OURS], "")
    again, refused = isolate(record, by(AUTOMATIC, 200.0), NOW_S)
    assert (again, refused) == (record, ""), "it holds, as was wanted"
    other, refused = isolate(record, by(AUTOMATIC, 200.0, cause="disk"), NOW_S)
    assert len(holding(other, NOW_S)) == 2 and not refused


def test_a_longer_isolation_is_added_to_one_that_will_expire() -> None:
    record, _ = isolate(Record(), by(AUTOMATIC, 100.0, until_wall_s=NOW_S + 5), NOW_S)
    record, refused = isolate(record, by(AUTOMATIC, 200.0), NOW_S)
    assert not refused and len(holding(record, NOW_S)) == 2


def test_old_evidence_does_not_undo_a_release() -> None:
    record, left = release(of(OURS), "bob", NOW_S, "cable replaced")
    assert left == []
    after, refused = isolate(record, by(AUTOMATIC, NOW_S + 60, evidence_wall_s=NOW_S - 1), NOW_S + 60)
    assert after == record and refused == "released by bob: cable replaced; nothing that was seen is newer"
    after, refused = isolate(record, by(AUTOMATIC, NOW_S + 60, evidence_wall_s=NOW_S + 1), NOW_S + 60)
    assert holding(after, NOW_S + 60) and not refused


def test_a_persons_isolation_is_always_added_and_stays_beside_guardruns_own() -> None:
    record, _ = release(of(OURS), "bob", NOW_S)
    record, refused = isolate(record, by("alice", NOW_S + 1), NOW_S + 1)
    assert not refused and [one.who for one in holding(record, NOW_S + 1)] == ["alice"]
    record, refused = isolate(record, by(AUTOMATIC, NOW_S + 2), NOW_S + 2)
    assert not refused and [one.who for one in holding(record, NOW_S + 2)] == ["alice", AUTOMATIC]


def test_who_may_release_what() -> None:
    bobs = by("bob", 300.0)
    record = of(OURS, ALICES, bobs)
    after, left = release(record, AUTOMATIC, NOW_S)
    assert left == [ALICES, bobs]
    after, left = release(record, "bob", NOW_S)
    assert left == [ALICES]
    after, left = release(record, "bob", NOW_S, is_overriding=True)
    assert left == [] and end_of(ALICES, after, NOW_S) == "released by bob"
    nothing, left = release(of(ALICES), AUTOMATIC, NOW_S)
    assert nothing == of(ALICES) and left == [ALICES]


def test_in_words() -> None:
    ours = by(AUTOMATIC, 1.0, summary="Xid 79 on gpu 3: it has fallen off the bus.")
    assert headline([ours, ALICES]) == (
        "gpu_xid (Xid 79 on gpu 3: it has fallen off the bus), isolated by guardrun; gpu_xid, isolated by alice"
    )


# Any records ----------------------------------------------------------------------------------------------------

WHO = st.sampled_from([AUTOMATIC, "alice", "bob"])
TIME = st.integers(0, 40).map(float)
ISOLATION = st.builds(
    Isolation,
    cause=st.sampled_from(["disk", "gpu_xid"]),
    who=WHO,
    since_wall_s=TIME,
    summary=st.sampled_from(["", "a", "b"]),
    evidence_wall_s=st.none() | TIME,
    until_wall_s=st.none() | TIME,
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    isolations = draw(st.lists(ISOLATION, max_size=6))
    ids = [one.id for one in isolations] or [""]
    lifts = st.lists(st.sampled_from(ids), max_size=2, unique=True).map(lambda found: tuple(sorted(found)))
    releases = draw(st.lists(st.builds(Release, who=WHO, at_wall_s=TIME, lifts=lifts), max_size=4))
    return of(*isolations, *releases)


@given(records(), records(), records())
def test_merging_is_a_union(a: Record, b: Record, c: Record) -> None:
    assert merge(a, a) == a
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == reduce(merge, [c, a, b, a, c])
    assert merge(a, Record()) == a


@given(records(), records())
def test_what_is_kept_survives_a_file(a: Record, b: Record) -> None:
    read = [msgspec.json.decode(msgspec.json.encode(one), type=Record) for one in (a, b)]
    assert merge(*read) == merge(a, b)


@given(records(), records(), TIME)
def test_a_release_wins_over_what_is_older_wherever_it_turns_up(a: Record, b: Record, at_s: float) -> None:
    """Released here, on what was known; another copy of the record comes in later."""
    after, left = release(a, "carol", at_s, is_overriding=True)
    assert left == []
    released = {one.id for one in holding(a, at_s)}
    for one in holding(merge(after, b), at_s):
        is_newer = one.newest_evidence_wall_s > at_s
        assert one.id not in released
        assert not one.is_automatic or is_newer


@given(records(), TIME)
def test_guardrun_never_lifts_a_persons(a: Record, at_s: float) -> None:
    persons = [one for one in holding(a, at_s) if not one.is_automatic]
    after, left = release(a, AUTOMATIC, at_s)
    assert left == persons == [one for one in holding(after, at_s) if not one.is_automatic]


@given(records(), ISOLATION, TIME)
@example(of(by("alice", 0.0, evidence_wall_s=0.0)), by("alice", 0.0, until_wall_s=0.0), 0.0)
def test_isolating_takes_nothing_away(a: Record, isolation: Isolation, at_s: float) -> None:
    after, refused = isolate(a, isolation, at_s)
    assert {one.id for one in holding(a, at_s)} <= {one.id for one in holding(after, at_s)}
    assert not (refused and not isolation.is_automatic)


@given(records(), TIME, TIME)
def test_pruning_changes_nothing_that_holds(a: Record, at_s: float, later_s: float) -> None:
    pruned = prune(a, at_s)
    later_s = max(at_s, later_s)
    assert holding(pruned, later_s) == holding(a, later_s)
    assert holding(merge(pruned, a), later_s) == holding(a, later_s)


def test_what_is_long_over_goes() -> None:
    record = of(*(by(AUTOMATIC, float(n), until_wall_s=float(n + 1)) for n in range(3 * MAX_PAST)), by("alice", 0.0))
    pruned = prune(record, NOW_S)
    assert len(pruned.isolations) == MAX_PAST + 1
    assert [one.who for one in holding(pruned, NOW_S)] == ["alice"]


# Whose word it is ------------------------------------------------------------------------------------------------


def own(uid: int, since_s: float, **more: object) -> Isolation:
    return by(AUTOMATIC, since_s, uid=uid, is_for_owner_alone=True, **more)


def test_an_entry_without_a_uid_holds_for_everybody() -> None:
    old = msgspec.json.decode(
        b'{"cause": "gpu_xid", "who": "guardrun", "since_wall_s": 100.0, "run_id": "r"}', type=Isolation
    )
    assert old.id == OURS.id
    assert [counting(of(old), NOW_S, uid) for uid in (EVERYBODY, 0, 7)] == [[old]] * 3


def test_a_users_isolation_counts_for_them_and_hides_no_sensors() -> None:
    record, why = isolate(of(), own(7, 100.0), NOW_S)
    assert [len(counting(record, NOW_S, uid)) for uid in (7, 8, EVERYBODY)] == [1, 0, 0]
    record, why = isolate(record, OURS, NOW_S)
    assert why == "" and counting(record, NOW_S, 8) == [OURS]
    record, why = isolate(of(own(7, 100.0)), own(8, 100.0), NOW_S)
    assert why == "" and len(counting(record, NOW_S, 8)) == 1


def test_a_users_release_lifts_their_own_alone() -> None:
    record = of(OURS, ALICES, own(7, 100.0), own(8, 100.0))
    after, left = release(record, "carol", NOW_S, is_overriding=True, uid=7)
    assert left == [one for one in holding(record, NOW_S) if one.uid != 7]
    assert release(after, "carol", NOW_S + 1, uid=7)[0] == after, "nothing is theirs: nothing is kept of it"
    assert release(after, "root", NOW_S, is_overriding=True)[1] == []


def test_a_users_isolations_are_bounded_and_push_nobodys_out() -> None:
    past = by("alice", 1.0, until_wall_s=2.0)
    lifted = Release(who="root", at_wall_s=5.0)
    record = of(OURS, past, lifted)
    for number in range(MAX_RELEASES + 50):
        record, _ = isolate(record, own(7, 200.0 + number, cause=f"c{number}"), NOW_S)
        record = prune(release(record, "carol", 200.5 + number, uid=7)[0], NOW_S)
    assert OURS in record.isolations and past in record.isolations and lifted in record.releases
    assert len(record.isolations) <= MAX_PAST + 2 and len(record.releases) <= MAX_PAST + 2
    whys = []
    for number in range(MAX_OF_ONE_USER + 1):
        record, why = isolate(record, own(7, 900.0, cause=f"d{number}"), NOW_S)
        whys.append(why)
    assert not any(whys[:-1]) and "isolations of yours hold on this node already" in whys[-1]
    assert isolate(record, own(8, 900.0), NOW_S)[1] == ""
