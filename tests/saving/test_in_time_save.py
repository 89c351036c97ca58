"""Who is asked to save before all are ended, on real boards, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.engine.model import events as ev
from tests.saving.in_time_node import FOUND, SAVED, STEP, Node
from tests.support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.pool.shutdown()
    for board in one.boards.values():
        board.close()
    for reader in one.sampler.boards.values():
        reader.close()


def test_the_first_is_asked_and_what_it_wrote_is_judged(node: Node) -> None:
    told = node.save((1, 2))
    assert told == ev.SavedInTime(
        request=3,
        attempt=0,
        global_rank=1,
        checkpoint=FOUND.checkpoint,
        is_unchecked=True,
        took_s=0.4,
        has_begun=True,  # type: ignore[arg-type]
    )
    assert (node.asked, node.looks, node.arguments[0]["step"]) == ([1], [("/out/a.pt", STEP)], STEP)
    assert node.kept


@pytest.mark.parametrize("says", [112, None, "x"])
def test_a_trainers_own_count_is_handed_on(says: object, node: Node) -> None:
    node.answers[0] = {**SAVED, "says": says}
    node.save()
    assert node.says == (says if isinstance(says, int) else None)


def test_what_is_no_checkpoint_is_none(node: Node) -> None:
    node.found = "it says step 13, and 12 are finished"
    told = node.save()
    assert told is not None and told.checkpoint is None
    assert told.why == "rank 0 saved /out/a.pt: it says step 13, and 12 are finished" and told.has_begun


def test_one_whose_function_was_not_called_is_followed_by_the_next_three_in_all(node: Node) -> None:
    node.answers = {n: {"why": f"no moment ({n})"} for n in range(4)}
    told = node.save()
    assert told is not None and (told.why, told.has_begun) == ("rank 2: no moment (2)", False)
    assert node.asked == [0, 1, 2]


@pytest.mark.parametrize("answer", [{"failed": "OSError: full"}, {}, "its hooks did not answer in time"])
def test_two_never_save_at_once(answer: dict[str, Any] | str, node: Node) -> None:
    node.answers[0] = answer
    told = node.save()
    assert told is not None and told.has_begun and told.checkpoint is None
    assert node.asked == [0]


def test_one_that_is_not_heard_yet_is_looked_for_often(node: Node) -> None:
    node.answers[0] = None
    assert node.save() is None
    assert node.samples == 0
    node.boards[0].words[Field.EXAMINE_GIVEN] = 1
    wait_until(lambda: node.samples == 1, 20, "it to be looked")


def test_one_that_dies_meanwhile_is_not_waited_for(node: Node) -> None:
    node.answers[0] = None
    node.boards[0].words[Field.PID] = 2**22 + 1  # above what the kernel gives out
    node.save()
    wait_until(lambda: node.samples == 1, 20, "it to be looked")


def test_an_answer_that_comes_too_late_is_not_looked_at(node: Node) -> None:
    ask = node._ask

    def ask_late(*asked: Any) -> None:
        node.clock.now = lambda: 120.0
        ask(*asked)

    node.examinations.ask_here = ask_late
    assert node.save() is None and node.looks == [] and node.asked == [0]


def step_ahead(node: Node) -> None:
    node.boards[2].words[Field.STEP] = STEP + 1


def saving(node: Node) -> None:
    node.boards[3].words[Field.SAVE_SINCE_NS] = 1


def without(node: Node) -> None:
    del node.sampler.boards[1]


def before_the_first(node: Node) -> None:
    for board in node.boards.values():
        board.words[Field.STEP] = 0


def of_another_attempt(node: Node) -> None:
    node.ingest.attempt = 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (step_ahead, "ranks have finished different numbers of steps: 12 and 13"),
        (saving, "rank 3 is saving by itself"),
        (without, "a rank has no board"),
        (of_another_attempt, "a rank has no board"),
        (before_the_first, "no step is finished"),
    ],
)
def test_nobody_is_asked_where_it_is_not_known_what_would_be_saved(make: Any, why: str, node: Node) -> None:
    make(node)
    assert node.save() == ev.SavedInTime(request=3, attempt=0, why=why)
    assert node.asked == []
