"""What a rank's DataLoader workers are told to do, and what a dead or stopped one changes."""

from __future__ import annotations

from typing import Any

import pytest

from guardrun.supervisor.engine.detectors.hang.hang import find
from guardrun.supervisor.engine.incidents.sentences import hang_sentence
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook
from guardrun.supervisor.engine.observation.dataloader_workers import Standing, clause, of_workers, workers_of
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity, judge
from guardrun.supervisor.engine.state.state import Attempt, RankState
from tests.engine.observation.workers import FETCH, READS, WAITS, look, process, worker

PACKAGE = [
    Frame("recv", "/usr/lib/python3.11/ssl.py", 1200),
    Frame("_getitem", "/venv/lib/python3.11/site-packages/datasets/arrow_dataset.py", 2700),
    FETCH,
]


@pytest.mark.parametrize(
    ("child", "standing", "spot"),
    [
        (worker(5, READS), Standing.INSIDE, "read_shard (data.py:31)"),
        (worker(5, PACKAGE), Standing.INSIDE, "_getitem (arrow_dataset.py:2700)"),
        (worker(5, WAITS), Standing.IDLE, ""),
        (worker(5, READS, state="T"), Standing.STOPPED, "read_shard (data.py:31)"),
        (worker(5, READS, state="D"), Standing.BLOCKED, "read_shard (data.py:31)"),
        (process(5, [], state="Z", command="pt_data_worker"), Standing.DEAD, ""),
        (process(5, [], command="pt_data_worker"), Standing.UNSEEN, ""),
    ],
)
def test_what_a_worker_does(child: ProcessLook, standing: Standing, spot: str) -> None:
    (found,) = workers_of(look(9.0, child, process(6, READS)))
    assert (found.standing, found.spot) == (standing, spot)


def test_one_that_has_died_is_known_by_what_it_was() -> None:
    gone = process(5, [], state="Z", command="python")
    assert workers_of(look(9.0, gone)) == []
    assert [w.standing for w in workers_of(look(9.0, gone), look(5.0, worker(5, WAITS)))] == [Standing.DEAD]


@pytest.mark.parametrize(
    ("children", "words"),
    [
        ([worker(5, WAITS), worker(6, READS)], "DataLoader worker 6 is in read_shard (data.py:31)"),
        ([worker(5, READS), worker(6, READS)], "DataLoader workers 5, 6 are in read_shard (data.py:31)"),
        (
            [worker(n, READS) for n in range(5, 12)],
            "DataLoader workers 5, 6, 7, 8 and 3 more are in read_shard (data.py:31)",
        ),
        ([worker(5, READS), process(6, [], state="Z", command="pt_data_worker")], "DataLoader worker 6 has died"),
        (
            [worker(5, READS, state="T")],
            "DataLoader worker 5 is stopped by a signal in read_shard (data.py:31)",
        ),
        (
            [worker(5, READS, state="D", wchan="nfs_wait", dead_mount="/scratch")],
            "DataLoader worker 5 is in uninterruptible wait (nfs_wait) in read_shard (data.py:31), on /scratch, "
            "which does not answer",
        ),
        ([worker(5, WAITS), worker(6, WAITS)], "DataLoader workers 5, 6 wait for work"),
        ([], ""),
    ],
)
def test_the_most_telling_is_said(children: list[ProcessLook], words: str) -> None:
    assert clause(workers_of(look(9.0, *children))) == words


def find_with(*children: ProcessLook, ranks: int = 2, **more: Any) -> tuple[Any, dict[int, Judgement]]:
    judged = [judge(look(5.0, *children, **more), look(9.0, *children, **more))]
    for n in range(2, ranks + 1):
        waits = [
            RankLook(global_rank=n, at_s=at_s, process=process(9, WAITS), in_collective="all_reduce")
            for at_s in (5.0, 9.0)
        ]
        judged.append(judge(*waits))
    found = find(judged, [], ev.Settings())
    assert found is not None
    return found, {judgement.global_rank: judgement for judgement in judged}


def sentence(*children: ProcessLook, **more: Any) -> str:
    found, by_rank = find_with(*children, **more)
    state = RankState(rank=ev.Rank(global_rank=1, local_rank=1, pid=4242, node="node-a"))
    return hang_sentence(Attempt(number=0, started_s=0.0, ranks={1: state}), found, by_rank, 62.0)


def test_the_sentence_names_the_worker_and_where_it_is_stuck() -> None:
    assert sentence(worker(4711, READS), worker(4712, WAITS)) == (
        "Rank 1 on node-a has waited 62 s for data: its DataLoader worker 4711 is in read_shard (data.py:31); "
        "rank 2 waits for it in all_reduce."
    )
    found, _ = find_with(worker(4711, READS), worker(4712, WAITS))
    assert (found.patience_s, found.is_certain) == (ev.Settings().data_patience_s, False)


@pytest.mark.parametrize("state", ["Z", "T"])
def test_a_worker_that_will_not_deliver_again_needs_little_patience(state: str) -> None:
    child = process(5, [], state="Z", command="pt_data_worker") if state == "Z" else worker(5, READS, state=state)
    found, _ = find_with(child)
    assert (found.patience_s, found.is_certain) == (ev.Settings().stopped_patience_s, True)
    assert ("has died" if state == "Z" else "is stopped by a signal") in sentence(child)


def test_a_worker_that_is_let_run_in_between_is_not_broken() -> None:
    looks = [look(at_s, worker(5, READS, state="T", switches=n)) for n, at_s in enumerate((5.0, 9.0))]
    assert judge(*looks).is_broken is False


def test_without_workers_the_rank_itself_says_where_it_waits() -> None:
    assert sentence().startswith("Rank 1 on node-a has waited 62 s for data in <module> (train.py:12); rank 2")


def test_a_mount_that_does_not_answer_is_named() -> None:
    blocked = process(4242, [Frame("load", "/home/user/train.py", 3)], state="D", dead_mount="/scratch")
    assert sentence(process=blocked, in_data_since_s=0.0) == (
        "Rank 1 on node-a has been in uninterruptible wait for 62 s in load (train.py:3), on /scratch, which does not "
        "answer; rank 2 waits for it in all_reduce."
    )


def test_a_rank_that_waits_for_a_dead_mount_is_blocked_whatever_its_state() -> None:
    blocked = process(4242, [Frame("load", "/home/user/train.py", 3)], dead_mount="/scratch")
    looks = [look(at_s, process=blocked, in_data_since_s=0.0) for at_s in (5.0, 9.0)]
    assert judge(*looks).doing is RankActivity.IO_BLOCKED


def test_evidence_is_bounded() -> None:
    told = of_workers([look(9.0, *(worker(n, READS, wchan="x") for n in range(100)))], [1])
    assert len(told) == 32
    assert told[0] == {
        "rank": 1,
        "pid": 0,
        "state": "S",
        "standing": "inside",
        "at": "read_shard (data.py:31)",
        "wchan": "x",
    }
