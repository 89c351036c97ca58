"""From judgements to a finding: cause, culprits, patience."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.detectors.hang.hang import LEAVING_PATIENCE_S, find
from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.observation.hang_finding import Finding
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity

SETTINGS = Settings()


def one(rank: int, doing: RankActivity, **fields: object) -> Judgement:
    return Judgement(global_rank=rank, doing=doing, reason="", **fields)  # type: ignore[arg-type]


def wait(rank: int, op: str = "all_reduce", order: int = 0, **fields: object) -> Judgement:
    return one(rank, RankActivity.WAITING, waits_in=op, order=order, **fields)


def found(*judged: Judgement, ended: tuple[int, ...] = (), settings: Settings = SETTINGS) -> Finding:
    finding = find(list(judged), list(ended), settings)
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("doing", "cause", "patience_s"),
    [
        (RankActivity.STOPPED, "rank_stopped", 3),
        (RankActivity.TRACED, "rank_stopped", 20),
        (RankActivity.GIL_HELD, "gil_held", 60),
        (RankActivity.COLLECTING, "gc_pause", 60),
        (RankActivity.IO_BLOCKED, "io_blocked", 60),
        (RankActivity.DATA, "dataloader_stall", 60),
        (RankActivity.IDLE, "rank_blocked", 30),
        (RankActivity.UNSEEN, "rank_blocked", 60),
        (RankActivity.SPINNING, "rank_spinning", 120),
    ],
)
def test_the_one_that_others_wait_for(doing: RankActivity, cause: str, patience_s: float) -> None:
    finding = found(wait(0), one(1, doing), wait(2))
    assert (finding.cause, finding.culprits, finding.waiting) == (cause, [1], [0, 2])
    assert finding.patience_s == patience_s
    assert finding.is_proof is (doing in (RankActivity.STOPPED, RankActivity.TRACED))


def test_nobody_is_suspected_while_somebody_gets_somewhere() -> None:
    assert find([wait(0), one(1, RankActivity.IDLE), one(2, RankActivity.BUSY)], [], SETTINGS) is None


def test_a_stopped_process_is_proof_whoever_is_busy() -> None:
    assert found(one(0, RankActivity.BUSY), one(1, RankActivity.STOPPED)).culprits == [1]
    assert found(one(0, RankActivity.TRACED), one(1, RankActivity.STOPPED)).culprits == [1]


def test_the_dead_are_not_judged() -> None:
    assert find([one(0, RankActivity.GONE)], [], SETTINGS) is None
    assert find([], [], SETTINGS) is None
    assert found(one(0, RankActivity.GONE), wait(1), one(2, RankActivity.IDLE)).culprits == [2]


@pytest.mark.parametrize("doing", [RankActivity.CHURNING, RankActivity.UNLOOKED])
def test_doubt_lasts_until_the_hard_limit(doing: RankActivity) -> None:
    finding = found(wait(0), one(1, doing), one(2, RankActivity.IDLE))
    assert (finding.cause, finding.culprits, finding.patience_s, finding.doing) == ("unknown", [1], 1800, doing)
    assert find([wait(0), one(1, doing)], [], Settings(hard_timeout_s=0)) is None


def test_the_most_doubtful_rival_sets_the_patience() -> None:
    finding = found(wait(0), one(1, RankActivity.IDLE), one(2, RankActivity.SPINNING))
    assert (finding.cause, finding.culprits, finding.patience_s) == ("rank_blocked", [1], 120)


def test_those_at_the_furthest_collective_wait_whatever_they_seem_to_do() -> None:
    """An asynchronous collective: a device's sync shows no frame of torch."""
    finding = found(*(one(n, RankActivity.SPINNING, order=8) for n in range(3)), one(3, RankActivity.IDLE, order=7))
    assert (finding.cause, finding.culprits, finding.waiting) == ("rank_blocked", [3], [0, 1, 2])
    assert finding.patience_s == 30


def test_by_place_where_nothing_counts_collectives() -> None:
    finding = found(
        *(one(n, RankActivity.IDLE, place="train.py:sync") for n in range(3)),
        one(3, RankActivity.IDLE, place="train.py:fetch"),
    )
    assert (finding.culprits, finding.waiting) == ([3], [0, 1, 2])


def test_all_are_guilty_where_nothing_tells_them_apart() -> None:
    finding = found(*(one(n, RankActivity.IDLE, place="train.py:fetch") for n in range(4)))
    assert (finding.culprits, finding.waiting, finding.patience_s) == ([0, 1, 2, 3], [], 60)
    assert finding.confidence < 0.8


def test_a_world_of_one() -> None:
    assert found(one(0, RankActivity.IDLE)).culprits == [0]
    assert found(one(0, RankActivity.SPINNING)).cause == "rank_spinning"


def test_init_where_the_others_wait_in_process_group_creation() -> None:
    finding = found(wait(0, is_in_init=True), one(1, RankActivity.IDLE), wait(2, is_in_init=True))
    assert (finding.cause, finding.culprits) == ("init", [1])


def test_init_where_one_has_ended_before_it_got_there() -> None:
    finding = found(wait(0, is_in_init=True), wait(2, is_in_init=True), ended=(1,))
    assert (finding.cause, finding.culprits, finding.waiting) == ("init", [1], [0, 2])


def test_all_in_the_same_collective() -> None:
    finding = found(wait(0), wait(1), wait(2))
    assert (finding.cause, finding.culprits, finding.patience_s) == ("collective_timeout", [], 120)
    assert "network or a device" in finding.why_nobody


def test_a_minority_in_another_collective() -> None:
    finding = found(wait(0, order=5), wait(1, "barrier", order=5), wait(2, order=5))
    assert (finding.cause, finding.culprits, finding.waiting) == ("collective_mismatch", [1], [0, 2])
    finding = found(wait(0, order=5), wait(1, order=4), wait(2, order=5))
    assert (finding.cause, finding.culprits) == ("collective_mismatch", [1])


def test_no_majority_no_culprit() -> None:
    finding = found(wait(0, order=5), wait(1, "barrier", order=6))
    assert (finding.cause, finding.culprits, finding.waiting) == ("collective_mismatch", [], [0, 1])
    assert "cannot be told" in finding.why_nobody


def test_pipelines_send_and_receive_without_being_wrong() -> None:
    finding = found(wait(0, "send", order=4), wait(1, "recv", order=9), wait(2, "recv", order=5))
    assert (finding.cause, finding.culprits) == ("collective_timeout", [])
    assert "point-to-point" in finding.why_nobody


def test_the_others_wait_for_one_that_has_ended() -> None:
    finding = found(wait(0), wait(2), ended=(1,))
    assert (finding.cause, finding.culprits) == ("collective_mismatch", [])
    assert "rank 1 had already ended" in finding.why_nobody


def test_all_wait_while_one_saves_in_the_background() -> None:
    assert find([wait(0, is_moving=True), wait(1)], [], SETTINGS) is None
    assert found(wait(0, is_moving=True), one(1, RankActivity.IDLE)).culprits == [1]


def test_processes_that_linger_after_the_end() -> None:
    finding = found(one(0, RankActivity.LEAVING), one(1, RankActivity.LEAVING))
    assert (finding.culprits, finding.patience_s, finding.doing) == ([0, 1], LEAVING_PATIENCE_S, RankActivity.LEAVING)
    finding = found(one(0, RankActivity.LEAVING), wait(1))
    assert finding.cause == "collective_mismatch" and "rank 0 had already ended" in finding.why_nobody
    assert found(one(0, RankActivity.LEAVING), one(1, RankActivity.IDLE)).culprits == [1]


@pytest.mark.parametrize(
    "doing", [RankActivity.IDLE, RankActivity.IO_BLOCKED, RankActivity.SPINNING, RankActivity.GIL_HELD]
)
def test_a_rank_in_a_save_is_given_longer(doing: RankActivity) -> None:
    finding = found(wait(0), one(1, doing, is_in_long_work=True))
    assert finding.patience_s == SETTINGS.save_patience_s == 300


def test_what_is_proof_is_proof_in_a_save_too() -> None:
    assert found(wait(0), one(1, RankActivity.STOPPED, is_in_long_work=True)).patience_s == SETTINGS.stopped_patience_s
