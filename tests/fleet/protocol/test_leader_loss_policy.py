"""What a node says, and when it ends, while it has no head."""

from __future__ import annotations

import pytest

from guardrun.supervisor.fleet.protocol.leader_loss_policy import (
    CLOSED_S,
    FIRST_S,
    NOTHING,
    LeaderLossPolicy,
    Obstacle,
    Seen,
    Step,
)

FILE = "/runs/.join-7"
PLACE = "10.0.0.1:4000"
AWAITED = "the guardrun on n0, which --rdzv-endpoint names"
GONE_S = 60.0


@pytest.fixture
def node() -> LeaderLossPolicy:
    return LeaderLossPolicy(FILE, 600.0, GONE_S, began_s=0.0, awaited=AWAITED)


def cut(now_s: float, lost_s: float = 1.0, has_file: bool = True) -> Seen:
    return Seen(now_s, PLACE, lost_s=lost_s, has_file=has_file)


def test_the_end_that_was_not_heard_is_seen_by_the_join_file(node: LeaderLossPolicy) -> None:
    node.joined("n0")
    node.lost(10.0, is_closed=False)
    assert node.step(cut(20.0, lost_s=0.0, has_file=False)) == NOTHING, "a head may be back while the lease lasts"
    node.ended({2: 0, 3: 0})
    told = node.step(cut(31.0, has_file=False))
    assert (
        told.end == 0
        and told.message == "the head (n0) has ended the run while it could not be heard here: ending, too"
    )
    node.ended({2: 0, 3: -9})
    assert node.step(cut(31.0, has_file=False)).end == 1
    assert node.step(cut(31.0, has_file=False)._replace(exit_code=0)).end == 0, "the run's own, where it can be read"


def test_ranks_that_ended_well_and_a_head_whose_connection_was_closed(node: LeaderLossPolicy) -> None:
    node.joined("n0")
    node.ended({0: 0})
    node.lost(10.0, is_closed=True)
    assert node.step(cut(10.0 + CLOSED_S - 1)).end is None, "a supervisor that was killed is back by then"
    told = node.step(cut(10.0 + CLOSED_S))
    assert told.end == 0 and told.message == "the ranks here have ended well, and the head (n0) is gone: ending, too"
    node.joined("n0")
    node.lost(50.0, is_closed=True)
    node.began()
    assert node.step(cut(50.0 + CLOSED_S)).end is None, "those of a new attempt have not"


def test_a_cut_link_may_come_back_and_what_is_waited_for_is_said(node: LeaderLossPolicy) -> None:
    node.joined("n0")
    node.ended({0: 0})
    node.lost(10.0, is_closed=False)
    told = node.step(cut(40.0))
    assert told == Step(
        "no contact with the head (n0), and no rank is alive here: waiting 60 s for it, or for another guardrun there, "
        "then ending",
        "warn",
    )
    assert node.step(cut(41.0, lost_s=GONE_S + 1)).is_lost
    node.joined("n0")
    assert node.step(Seen(50.0, PLACE, is_joined=True)) == NOTHING


def test_a_head_that_is_not_there_yet(node: LeaderLossPolicy) -> None:
    assert node.step(Seen(FIRST_S, has_file=False)) == NOTHING
    assert node.step(Seen(6.0, has_file=False)).message == (
        f"waiting for the head: the guardrun on n0, which --rdzv-endpoint names (by {FILE}, in a folder that it shares "
        "with this node, or name a file that it does with --guard-join); 600 s at most"
    )
    empty = Seen(6.0, PLACE, obstacle=Obstacle.NOBODY, failures=2)
    text = f"waiting for the head: nothing listens at {PLACE} yet, which {FILE} names; 600 s at most"
    assert node.step(empty).message == text
    said = node.step(empty._replace(place="127.0.0.1:4000")).message
    assert "names (if it is on another host: name it there by an address that this node reaches); 600 s" in said
    assert node.step(Seen(601.0, has_file=False)) == Step(
        f"no head found for 601 s: {AWAITED} (join file {FILE})", "bad", end=1
    )


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (Obstacle.TURNED_AWAY, f"what listens at {PLACE} does not take the keys in {FILE}: "),
        (Obstacle.UNANSWERED, f"what listens at {PLACE} does not answer to the keys in {FILE}: "),
    ],
)
def test_a_wrong_key_is_not_waited_for_in_words(node: LeaderLossPolicy, obstacle: Obstacle, words: str) -> None:
    told = node.step(Seen(6.0, PLACE, obstacle=obstacle, failures=2))
    assert told.message.startswith(words) and "--guard-join" in told.message and "waiting" not in told.message
    assert "waiting" in node.step(Seen(6.0, PLACE, obstacle=obstacle, failures=1)).message, "one may be by chance"


def test_who_is_refused_says_nothing_else(node: LeaderLossPolicy) -> None:
    node.refused(3.0)
    node.refused(20.0)
    assert node.step(Seen(30.0, PLACE, failures=3)) == NOTHING and not node.is_refused(33.0)
    assert node.is_refused(33.5)
    node.joined("n0")
    assert not node.is_refused(40.0)


def test_a_join_file_that_may_not_be_used(node: LeaderLossPolicy) -> None:
    node.unusable()
    assert node.step(Seen(30.0, PLACE)) == NOTHING
