"""Who is asked to save before all are ended, on real boards, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import LAST_STEP
from guardrun.supervisor.collect.ranks.boards import Part
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.saving import in_time_save
from guardrun.supervisor.saving.in_time_save import halt_step, who_saves
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
    node.answers[0] = {**SAVED, "says": says, "took_s": 10**400}
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


def test_where_training_goes_on_it_is_of_whichever_step_the_rank_has_finished(node: Node) -> None:
    step_ahead(node)
    node.answers[1] = {**SAVED, "step": STEP + 3, "own_steps": 7}
    told = node.save((1, 2), is_running=True)
    assert told is not None and told.checkpoint == FOUND.checkpoint
    assert (node.asked, node.arguments[0]["step"], node.looks) == ([1], LAST_STEP, [("/out/a.pt", STEP + 3)])
    assert node.used == [(0, 1, 7, FOUND.checkpoint)]


@pytest.mark.parametrize(("make", "why"), [(saving, "rank 3 is saving by itself"), (before_the_first, "no step is")])
def test_nor_then_do_two_save_at_once_nor_before_a_step(make: Any, why: str, node: Node) -> None:
    make(node)
    told = node.save(is_running=True)
    assert told is not None and why in told.why and node.asked == []


@pytest.mark.parametrize("left_s", [20.0, 0.5])
def test_an_ordinary_save_that_has_begun_meanwhile_is_not_cut_off(left_s: float, node: Node) -> None:
    """By the stop that follows; but no save is waited for longer than this one would be."""
    ask = node._ask

    def ask_then(*asked: Any) -> None:
        saving(node)
        node.clock.now = lambda: 120.0 - left_s
        ask(*asked)

    node.examinations.ask_here = ask_then
    told = node.save(is_running=True)
    if left_s > 1.0:
        assert told is None and node.looks, "it is whole"
        node.boards[3].words[Field.SAVE_SINCE_NS] = 0
        wait_until(lambda: bool(node.events), 20, "it to be told")
    assert node.events[0].checkpoint == FOUND.checkpoint


@pytest.mark.parametrize("step", [None, 0, -1, 2.0, "12", 10**400])
def test_a_save_after_no_step_is_none(step: object, node: Node) -> None:
    node.answers[0] = {**SAVED, "step": step, "took_s": 10**400, "wall_s": 10**400}
    told = node.save(is_running=True)
    assert told is not None and told.why == "rank 0 saved /out/a.pt: it does not say after which step"
    assert told.has_begun and node.looks == []


def test_nor_while_a_rank_saves_by_itself_that_could_not_be_asked_for_it(node: Node) -> None:
    """Between its step and the next backward pass: the rank that was asked first says so after seconds."""
    node.answers[0] = {"why": "no backward pass has begun since its last step"}
    asked = node._ask

    def ask(*what: Any) -> None:
        saving(node)
        asked(*what)

    node.examinations.ask_here = ask
    told = node.save(is_running=True)
    assert told == ev.SavedInTime(request=3, attempt=0, why="rank 3 is saving by itself") and node.asked == [0]


# Sharded, while training goes on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "took_s", "step"),
    [
        pytest.param(10, 10, 1.0, 11, id="long steps: it may be at the end of one"),
        pytest.param(10, 11, 1.0, 15, id="one a second"),
        pytest.param(10, 60, 1.0, 211, id="fast"),
        pytest.param(10, 60, 2.5, 121, id="a second look that came late"),
        pytest.param(10, 2, 1.0, 3, id="numbers that the script has set back"),
    ],
)
def test_ranks_halt_after_a_step_that_none_has_finished_when_it_hears_of_it(
    before: int, now: int, took_s: float, step: int
) -> None:
    assert halt_step(before, now, took_s) == step


HALT = STEP + 4 + 1 + 4 * 3


@pytest.fixture
def running(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Two parts; four steps are done between the two looks, a second apart."""
    node.shard(2)

    def go_on(seconds: float) -> None:
        assert seconds == 1.0
        for board in node.boards.values():
            board.words[Field.STEP] += 4

    clock = SimpleNamespace(sleep=go_on, monotonic=lambda: 1.0, monotonic_ns=lambda: 1)
    monkeypatch.setattr(in_time_save, "time", clock)
    node.answers = {n: {**SAVED, "path": f"/out/{n}.pt", "step": HALT + 1} for n in range(4)}
    return node


def ended(node: Node, **more: Any) -> ev.SavedInTime:
    node.save(is_running=True, **more)
    wait_until(lambda: bool(node.events), 20, "an end")
    [event] = node.events
    return event


def test_where_training_goes_on_each_part_is_saved_after_the_same_step(running: Node) -> None:
    told = ended(running)
    assert (told.checkpoint, told.global_ranks, told.why) == (FOUND.checkpoint, [2, 3], "")
    assert [(one["step"], one["halt"], one["part"]) for one in running.arguments] == [
        (HALT, True, (0, 2)),
        (HALT, True, (1, 2)),
    ]
    assert [(part.path, part.global_rank) for part in running.parts] == [("/out/2.pt", 2), ("/out/3.pt", 3)]


def test_parts_of_several_steps_are_none(running: Node) -> None:
    running.answers[3] = {**SAVED, "step": HALT}
    told = ended(running)
    assert told.why == f"ranks 2-3 saved /out/2.pt and others: they are of steps {HALT} to {HALT + 1}"
    assert told.has_begun and running.parts == []


@pytest.mark.parametrize("answer", [{"why": "it had finished 99 steps"}, {"failed": "OSError: full"}, "no answer"])
def test_where_one_does_not_halt_nobody_else_is_asked_for_its_part(answer: dict[str, Any] | str, running: Node) -> None:
    running.answers[2] = answer
    told = ended(running)
    assert told.why.startswith("rank 2: ") and told.has_begun and running.asked == [2], "others may halt still"


def test_what_comes_between_the_looks_is_seen(running: Node) -> None:
    def save(seconds: float) -> None:
        saving(running)

    in_time_save.time.sleep = save  # type: ignore[assignment]
    assert ended(running) == ev.SavedInTime(request=3, attempt=0, why="rank 3 is saving by itself")
    assert running.asked == []


# Sharded ----------------------------------------------------------------------------------------------------------


def mesh(parts: int, ranks: int = 4, ready: tuple[int, ...] = ()) -> dict[int, Part]:
    return {number: Part(number % parts, parts, number in ready) for number in range(ranks)}


@pytest.mark.parametrize(
    ("alive", "may", "parts", "asked"),
    [
        pytest.param([0, 1, 2, 3], [1, 2, 3], {}, [[1, 2, 3]], id="all hold all"),
        pytest.param([0, 1, 2, 3], [3, 1, 2, 0], mesh(1), [[3, 1, 2]], id="replicas by a mesh"),
        pytest.param([1, 2, 3], [1, 2, 3], mesh(2), [[2], [3, 1]], id="numbers of no part first"),
        pytest.param([0, 1, 2, 3], [0, 1, 2], mesh(2, ready=(0, 1)), [[0, 2], [1]], id="the step of others is further"),
        pytest.param([0, 1, 2, 3], [2, 3, 0, 1], mesh(2, ready=(0, 1, 2, 3)), [[2, 0], [3, 1]], id="all are as far"),
        pytest.param([*range(1, 8)], [*range(1, 8)], mesh(2, 8), [[2, 4, 6], [3, 5, 7]], id="three each"),
        pytest.param([0, 1], [0, 1], mesh(2, 2), [[0], [1]], id="no replicas, all well"),
    ],
)
def test_for_each_part_somebody_is_asked(
    alive: list[int], may: list[int], parts: dict[int, Part], asked: list[list[int]]
) -> None:
    assert who_saves(alive, may, parts) == asked


@pytest.mark.parametrize(
    ("alive", "may", "parts", "why"),
    [
        ([0, 2], [0, 2], mesh(2), "no rank that is well holds part 1 of 2, which was held by ranks 1,3 alone"),
        ([0], [0], mesh(2, 2), "no rank that is well holds part 1 of 2, which was held by rank 1 alone"),
        (
            [0],
            [0],
            {0: Part(0, 2, True)},
            "no rank that is well holds part 1 of 2, which was held by ranks that are gone",
        ),
        ([0, 1, 2], [0, 1], mesh(2) | {2: Part(-1, 0, True)}, "ranks do not say the same"),
        ([0, 1], [0, 1], {0: Part(0, 2, True)}, "ranks do not say the same"),
        ([0, 1], [0, 1], mesh(2) | {1: Part(1, 4, True)}, "ranks do not say the same"),
        ([0, 1], [0, 1], mesh(2) | {1: Part(2, 2, True)}, "ranks do not say the same"),
        ([*range(257)], [*range(257)], mesh(257, 257), "into 257 parts, and 256 ranks are asked at most"),
    ],
)
def test_where_a_part_has_no_holder_nobody_is_asked(
    alive: list[int], may: list[int], parts: dict[int, Part], why: str
) -> None:
    found = who_saves(alive, may, parts)
    assert isinstance(found, str) and why in found


def test_each_part_is_asked_for_and_all_are_one_checkpoint(node: Node) -> None:
    node.shard(2)
    node.answers |= {2: {"why": "no moment"}, 3: {**SAVED, "path": "/out/b.pt", "took_s": 0.9}}
    told = node.save()
    assert told is not None and (told.global_rank, told.global_ranks, told.took_s) == (0, [0, 3], 0.9)
    assert told.checkpoint == FOUND.checkpoint
    assert node.asked == [2, 0, 3], "another holder of part 0, and of that alone"
    assert [one["part"] for one in node.arguments] == [(0, 2), (0, 2), (1, 2)]
    [token] = {one["token"] for one in node.arguments}
    node.events.clear()
    node.save()
    assert len(token) == 16 and {one["token"] for one in node.arguments[3:]}.isdisjoint({token}), "no other request's"
    assert [(part.path, part.global_rank) for part in node.parts] == [("/out/a.pt", 0), ("/out/b.pt", 3)]
    assert node.looks == []


@pytest.mark.parametrize(
    "answer",
    [{"failed": "OSError: full"}, "its hooks did not answer in time", {"why": "its parameters are not finite"}],
)
def test_where_one_part_fails_there_is_none_and_what_others_wrote_is_doubtful(
    answer: dict[str, Any] | str, node: Node
) -> None:
    node.shard(2)
    node.answers |= {1: answer, 3: answer}
    told = node.save()
    assert told is not None and told.checkpoint is None and told.has_begun and node.parts == []


def test_a_part_that_nobody_holds_any_more_is_named(node: Node) -> None:
    node.shard(4)
    told = node.save((0, 1, 3), alive=(0, 1, 3))
    why = "no rank that is well holds part 2 of 4, which was held by rank 2 alone"
    assert told == ev.SavedInTime(request=3, attempt=0, why=why) and node.asked == []


def test_several_that_are_not_heard_yet_are_watched_at_once(node: Node) -> None:
    node.shard(4)
    node.answers = dict.fromkeys(range(4))
    assert node.save() is None and node.asked == [0, 1, 2, 3]
    for number in (3, 0, 2, 1):  # of a pool of one thread
        before = node.samples
        node.boards[number].words[Field.EXAMINE_GIVEN] = 1
        wait_until(lambda before=before: node.samples > before, 20, "it to be looked")
