"""A save by ranks of several nodes: what is said between them, by real boards and files, and who is not believed."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import LAST_STEP
from guardrun.hooks.wire.random_page import MAGIC, SIZE_BYTES, random_name
from guardrun.supervisor.collect.ranks.boards import Part
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.saving import fleet_in_time_save as fleet
from guardrun.supervisor.saving import in_time_save
from guardrun.supervisor.saving.fleet_in_time_save import Answer, ManyNodes, NodePart, Order
from guardrun.supervisor.saving.in_time_save import InTimeNode, InTimeSaves
from tests.saving.in_time_node import FOUND, STEP, Node
from tests.support.waiting import wait_until

PAGE = MAGIC.to_bytes(8, "little") + bytes(SIZE_BYTES - 8)


class Head(Node):
    """Node n0 with ranks 0 to 3; n1 has 4, n2 has 5, n3 is a spare, and n4 is left out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sockets = folder
        self.ingest.ranks = dict.fromkeys(self.boards)
        settings = SimpleNamespace(act=True, jit_s=20.0)
        self.run_file = SimpleNamespace(node="n0", settings=settings)
        self.later_s = 0.0
        self.there = ["n1", "n2", "n3", "n4"]
        self.sent: list[tuple[str, Order]] = []
        homes = {**dict.fromkeys(self.boards, "n0"), 4: "n1", 5: "n2"}
        self.many = ManyNodes(cast(InTimeNode, self), self._send, lambda: self.there, homes, {"n4"})
        self.path = folder / "jit.pt"
        self.path.write_bytes(b"x")
        self.told = {"path": str(self.path), "inode": 7, "wall_s": 5.0, "took_s": 0.4, "step": STEP}
        self.told["written_ns"] = self.path.stat().st_mtime_ns

    def _send(self, node: str, order: Order) -> None:
        self.sent.append((node, order))

    def begin(self, ranks: tuple[int, ...] = (4, 0), **more: Any) -> None:
        alive = [*self.boards, 4, 5]
        action = ac.SaveInTime(request=3, attempt=0, until_s=120.0, global_ranks=list(ranks), alive=alive, **more)
        InTimeSaves(cast(InTimeNode, self), cast(Any, self), lambda: None, reach=self.many).begin(action)

    def take(self, kind: type) -> list[tuple[str, Any]]:
        """What was sent of this kind, once."""
        found = [(node, order) for node, order in self.sent if isinstance(order, kind)]
        self.sent = [pair for pair in self.sent if not isinstance(pair[1], kind)]
        return found

    def steps(self, node: str, low: int = STEP, high: int = STEP, **more: Any) -> None:
        self.many.answered(node, msg.StepsReported(request=3, low=low, high=high, **more))

    def agreed(self, ranks: tuple[int, ...] = (4, 0)) -> None:
        """All nodes have said the same number of steps."""
        self.begin(ranks)
        for node in ("n1", "n2"):
            self.steps(node)

    def saved(self, node: str = "n1", number: int = 4, request: int = 3, **told: Any) -> None:
        self.many.answered(node, msg.SavedHere(request=request, global_rank=number, told={**self.told, **told}))

    def see(self, *nodes: str, number: int = 4, why: str = "") -> None:
        for node in nodes:
            self.many.answered(node, msg.FileSought(request=3, global_rank=number, why=why))

    def sharded(self, ranks: tuple[int, ...], held: dict[int, Part], parts: int = 2) -> None:
        """All nodes have said the same number of steps; held: what n1 and n2 say of ranks."""
        self.shard(parts)
        self.begin(ranks)
        self.take(msg.ReportSteps)
        for node in ("n1", "n2"):
            self.steps(node, parts=held)

    @property
    def why(self) -> str:
        [event] = self.events
        assert event.checkpoint is None
        return event.why

    def late(self, seconds: float) -> None:
        """What is done once a second, so much later."""
        self.later_s += seconds
        self.many.tick()


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    one = Head(tmp_path)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + one.later_s, time=time.time, sleep=time.sleep)
    monkeypatch.setattr(fleet, "time", clock)
    monkeypatch.setattr(fleet.why_unseen, "__defaults__", (0.0,))
    yield one
    for board in one.boards.values():
        board.words[Field.EXAMINE_GIVEN] += 1  # whoever waits for an answer waits no longer
    one.pool.shutdown()
    for board in one.boards.values():
        board.close()
    for reader in one.sampler.boards.values():
        reader.close()


# The head -------------------------------------------------------------------------------------------------------------


def test_a_rank_of_another_node_saves_and_all_see_it(head: Head) -> None:
    head.begin()
    asked = head.take(msg.ReportSteps)
    assert [(node, order.ranks) for node, order in asked] == [("n1", [4]), ("n2", [5])], "a spare has none"
    head.steps("n1")
    assert not head.sent, "nobody saves before all have answered"
    head.steps("n2")
    [(node, order)] = head.take(msg.SaveHere)
    assert (node, order.global_rank, order.step, order.by_s) == ("n1", 4, STEP, 120.0)
    head.saved()
    assert {node for node, _ in head.take(msg.SeekFile)} == {"n2", "n3"}
    head.see("n3", "n2")
    [event] = head.events
    assert (event.global_rank, event.checkpoint) == (4, FOUND.checkpoint)
    assert head.asked == [] and head.looks == [(str(head.path), STEP)]


def test_a_rank_at_the_end_of_its_step_is_waited_for(head: Head) -> None:
    head.begin()
    head.take(msg.ReportSteps)
    head.steps("n1")
    head.steps("n2", STEP - 1, STEP - 1)
    assert not head.events and not head.sent
    head.late(1.0)
    assert len(head.take(msg.ReportSteps)) == 2, "asked again"
    head.steps("n1")
    head.steps("n2")
    assert head.take(msg.SaveHere)


def test_where_training_goes_on_ranks_need_not_be_equally_far(head: Head) -> None:
    head.begin(is_running=True)
    head.take(msg.ReportSteps)
    head.steps("n1", STEP + 2, STEP + 2, pages={4: PAGE})
    head.steps("n2", STEP - 1, STEP + 1)
    [(node, order)] = head.take(msg.SaveHere)
    assert (node, order.global_rank, order.step, order.pages) == ("n1", 4, LAST_STEP, {})
    head.saved(step=STEP + 5)
    head.see("n2", "n3")
    for is_saving in (True, False):
        wait_until(lambda: any(isinstance(order, msg.ReportSteps) for _, order in head.sent), 20, "a look who saves")
        head.take(msg.ReportSteps)
        assert not head.events
        head.steps("n2")
        head.steps("n1", why="rank 4 is saving by itself" if is_saving else "", is_saving=is_saving)
    [event] = head.events
    assert event.checkpoint == FOUND.checkpoint and head.looks == [(str(head.path), STEP + 5)]


def test_a_node_that_is_there_and_does_not_answer_may_be_further(head: Head) -> None:
    head.begin()
    head.steps("n1")
    head.late(fleet.STEPS_S)
    assert head.why == "n2 did not say how many steps its ranks have finished" and not head.take(msg.SaveHere)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"why": "rank 5 is saving by itself"}, "rank 5 is saving by itself"),
        ({"low": 11, "high": 12}, "ranks have finished different numbers of steps: 11 and 12"),
    ],
)
def test_nobody_is_asked_where_it_is_not_known_what_would_be_saved(more: dict[str, Any], why: str, head: Head) -> None:
    head.begin()
    head.steps("n1")
    head.later_s = fleet.STEPS_S
    head.steps("n2", **more)
    assert head.why == why and not head.take(msg.SaveHere) and head.asked == []


def test_a_node_that_dies_meanwhile_is_not_waited_for(head: Head) -> None:
    head.answers[0] = head.told
    head.there = ["n1", "n3"]  # before it is asked; …
    head.begin()
    assert [node for node, _ in head.take(msg.ReportSteps)] == ["n1"]
    head.there = ["n3"]
    head.many.dropped("n1")  # … and after
    assert head.asked == [0] and not head.take(msg.SaveHere), "the next that is well"
    assert [node for node, _ in head.take(msg.SeekFile)] == ["n3"]


def test_the_next_is_asked_on_whichever_node_but_never_while_one_may_save(head: Head) -> None:
    head.answers = {0: {"why": "no moment"}, 1: {"failed": "OSError: full"}}
    head.agreed((0, 4, 1))
    [(_, order)] = head.take(msg.SaveHere)
    assert (head.asked, order.global_rank) == ([0], 4)
    head.saved("n2")  # not from whom it was asked; …
    head.saved(number=5)
    head.saved(request=2)  # … of another rank, or another request
    assert not head.events and head.asked == [0] and not head.take(msg.SeekFile)
    head.many.answered("n1", msg.SavedHere(request=3, global_rank=4, told={"why": "its node trains no more"}))
    assert head.asked == [0, 1] and head.why == "rank 1: OSError: full"


@pytest.mark.parametrize("how", ["gone", "replaced", "silent", "late"])
def test_one_that_may_have_written_anything_is_the_last(how: str, head: Head) -> None:
    head.agreed()
    head.take(msg.SaveHere)
    if how == "gone":
        head.there = ["n2"]
        head.many.dropped("n1")
        head.many.tick()
        assert not head.events, "it may be back in a moment"
        head.late(fleet.GONE_S + 1)
    elif how == "replaced":
        head.many.replaced("n1")
    elif how == "silent":
        head.many.answered("n1", msg.SavedHere(request=3, global_rank=4, missing="its hooks did not answer in time"))
    else:
        head.clock.now = lambda: 120.0
        head.many.tick()
    [event] = head.events
    assert event.has_begun and event.checkpoint is None and head.asked == []
    head.saved()
    assert len(head.events) == 1 and head.looks == [] and not head.take(msg.SeekFile)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda head: head.see("n3", why="it is not there"), "n3 does not see it"),
        (lambda head: os.utime(head.path, (1, 1)), "n0 does not see it: what lies there is of another time"),
        (lambda head: head.path.unlink(), "n0 does not see it: it is not there"),
    ],
)
def test_what_some_node_does_not_see_is_not_resumed_from(spoil: Any, why: str, head: Head) -> None:
    head.agreed()
    if "n0" in why:
        spoil(head)
    head.saved()
    if "n3" in why:
        spoil(head)
    head.see("n2", "n3")
    assert why in head.why and head.looks == []


def test_where_one_does_not_say_whether_it_sees_it_it_is_not_taken(head: Head) -> None:
    head.answers[0] = head.told
    head.agreed((0,))
    head.see("n2", "n3")
    head.late(fleet.SEEK_S + 1)
    assert "n1 does not say whether it sees it" in head.why


def test_random_states_go_to_the_node_that_saves_and_a_node_s_word_counts_for_its_own(head: Head) -> None:
    packed = zlib.compress(PAGE)
    head.begin((0, 4))
    head.answers[0] = None
    head.steps("n1", pages={4: packed, 0: b"of another's rank"})
    head.steps("n2", pages={5: packed})
    assert head.asked == [0]
    assert (head.folder / random_name(0, 4)).read_bytes() == (head.folder / random_name(0, 5)).read_bytes() == PAGE
    assert not (head.folder / random_name(0, 0)).exists()


# Parts of what is sharded: the head's ranks hold part 0, 1, 0, 1 -----------------------------------------------------

HELD = {4: Part(0, 2, True), 5: Part(1, 2, True)}


def test_each_part_is_saved_by_whoever_holds_it_on_whichever_node(head: Head) -> None:
    head.answers[3] = head.told
    head.sharded((0, 1, 3, 4), HELD)
    [(node, order)] = head.take(msg.SaveHere)
    assert (node, order.global_rank, order.part, order.step) == ("n1", 4, (0, 2), STEP), "its backward pass has begun"
    assert head.asked == [3] and head.arguments[0]["part"] == (1, 2)
    assert head.arguments[0]["token"] == order.token != "", "by which their parts find each other"
    assert [(node, order.global_rank) for node, order in head.take(msg.SeekFile)] == [("n1", 3), ("n2", 3), ("n3", 3)]
    head.saved()
    assert [(node, order.global_rank) for node, order in head.take(msg.SeekFile)] == [("n2", 4), ("n3", 4)]
    head.see("n2", "n3")
    head.see("n1", "n2", number=3)
    assert not head.events, "n3 has seen but one of the two"
    head.see("n3", number=3)
    [event] = head.events
    assert (event.global_ranks, event.checkpoint) == ([3, 4], FOUND.checkpoint)
    assert [(part.global_rank, part.inode) for part in head.parts] == [(3, 7), (4, 0)], "another node's says nothing"


def test_a_part_that_one_can_t_save_is_another_s_of_whichever_node(head: Head) -> None:
    head.answers = dict.fromkeys((1, 2))
    head.sharded((4, 2, 1), HELD)
    [(_, order)] = head.take(msg.SaveHere)
    assert (order.global_rank, head.asked) == (4, [1])
    head.many.answered("n1", msg.SavedHere(request=3, global_rank=4, told={"why": "no moment"}))
    assert head.asked == [1, 2] and not head.take(msg.SaveHere) and not head.events


def test_where_training_goes_on_all_are_told_to_save_after_the_same_step(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_time_save, "PACE_S", 0.0)
    head.shard(2)
    head.begin((4, 5), is_running=True)
    head.take(msg.ReportSteps)
    for node in ("n1", "n2"):
        head.steps(node, STEP + 1, STEP + 1, parts=HELD)
    wait_until(lambda: len(head.sent) == 2, 20, "a second look")
    head.take(msg.ReportSteps)
    for node in ("n2", "n1"):
        head.steps(node, STEP + 1, STEP + 2, parts=HELD)
    orders = [order for _, order in head.take(msg.SaveHere)]
    assert [(order.global_rank, order.part, order.is_halting) for order in orders] == [
        (4, (0, 2), True),
        (5, (1, 2), True),
    ]
    assert len({order.step for order in orders}) == 1 and orders[0].step > STEP + 3


def test_a_node_s_word_on_parts_counts_for_its_own_ranks(head: Head) -> None:
    head.sharded((4, 5), {4: Part(0, 2, True), 5: Part(0, 2, True), 0: Part(1, 2, True), 99: Part(5, 7, True)})
    assert head.why == "no rank that is well holds part 1 of 2, which was held by ranks 1,3 alone" and not head.sent


@pytest.mark.parametrize(("ranks", "asked"), [((4, 0, 1), [0, 1]), ((4, 0), [])])
def test_ranks_of_a_node_that_can_t_be_reached_are_neither_asked_nor_compared(
    ranks: tuple[int, ...], asked: list[int], head: Head
) -> None:
    head.answers = dict.fromkeys((0, 1))
    head.shard(2)
    head.begin(ranks)
    head.take(msg.ReportSteps)
    head.steps("n2", parts=HELD)
    head.there = ["n2", "n3"]
    head.many.dropped("n1")
    assert head.asked == asked and not head.sent
    assert bool(asked) or head.why == "no rank that is well holds part 1 of 2, which was held by ranks 1,3,5 alone"


@pytest.mark.parametrize("how", ["unseen", "failed", "gone"])
def test_where_one_part_is_lost_there_is_none(how: str, head: Head) -> None:
    head.sharded((4, 5), HELD)
    assert [order.part for _, order in head.take(msg.SaveHere)] == [(0, 2), (1, 2)]
    head.saved()
    if how == "unseen":
        head.see("n3", why="it is not there")
        head.see("n2")
    elif how == "failed":
        head.many.answered("n2", msg.SavedHere(request=3, global_rank=5, told={"failed": "OSError: full"}))
    else:
        head.many.replaced("n2")
    whys = {"unseen": "n3 does not see it", "failed": "rank 5: OSError: full", "gone": "its supervisor was started"}
    assert whys[how] in head.why and head.events[0].has_begun
    head.see("n2", "n3")
    head.saved("n2", 5)
    head.late(30.0)
    assert len(head.events) == 1 and head.parts == [], "whatever comes later"


# A node ---------------------------------------------------------------------------------------------------------------


class OneNode:
    def __init__(self, head: Head) -> None:
        self.node, self.part, self.sent = head, NodePart(cast(InTimeNode, head)), list[Answer]()

    def obey(self, *, is_running: bool = True, **order: Any) -> dict[str, Any] | None:
        """What is answered at once."""
        fields = {"request": 3, "attempt": 0, "global_rank": 1, "step": STEP, "by_s": 120.0, **order}
        self.sent.clear()
        self.part.obey(msg.SaveHere(**fields), self.sent.append, is_running=is_running)
        answers = [one for one in self.sent if isinstance(one, msg.SavedHere)]
        return answers[0].told if answers else None


@pytest.fixture
def part(head: Head) -> OneNode:
    return OneNode(head)


def test_a_node_has_its_rank_save_and_answers_again_what_it_has_answered(part: OneNode) -> None:
    assert part.obey() == part.obey() is not None
    assert part.node.asked == [1], "one never saves twice"
    assert part.obey(global_rank=2, part=(1, 2), is_halting=True) is not None and part.node.asked == [1, 2]
    assert [(one["part"], one["halt"]) for one in part.node.arguments] == [(None, False), ((1, 2), True)]
    assert part.obey() is not None and part.node.asked == [1, 2], "nor after another of its ranks"
    assert part.obey(request=4) is not None and part.node.asked == [1, 2, 1]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"attempt": 1}, "its node does not train that attempt"),
        ({"is_running": False}, "its node does not train that attempt"),
        ({"global_rank": 9}, "its node has no such rank"),
        ({"by_s": 100.0}, "it was asked too late"),
        ({"by_s": float("nan")}, "it was asked too late"),
    ],
)
def test_what_a_node_is_not_to_do_it_says_and_does_not(order: dict[str, Any], why: str, part: OneNode) -> None:
    assert part.obey(**order) == {"why": why} and part.node.asked == []


def test_a_node_that_is_not_to_act_does_not(part: OneNode) -> None:
    part.node.run_file.settings.act = False
    assert part.obey() == {"why": "its node is not to have ranks save"} and part.node.asked == []


def test_pages_that_are_none_or_of_its_own_ranks_are_not_kept(part: OneNode) -> None:
    bomb = zlib.compress(bytes(50 * SIZE_BYTES))
    pages = {1: zlib.compress(PAGE), 7: b"none", 8: bomb, 9: zlib.compress(bytes(SIZE_BYTES)), 10: zlib.compress(PAGE)}
    part.node.answers[1] = None
    part.obey(pages=pages)
    assert part.node.asked == [1]
    assert [path.name for path in part.node.folder.glob("random-*")] == ["random-0-10"]


def test_a_node_says_how_far_its_ranks_are_and_what_trainers_keep(part: OneNode) -> None:
    (part.node.folder / random_name(0, 2)).write_bytes(PAGE)
    (part.node.folder / random_name(0, 3)).write_bytes(PAGE[:-1])
    os.mkfifo(part.node.folder / random_name(0, 1))
    part.node.boards[1].words[Field.STEP] = STEP + 1
    part.part.obey(msg.ReportSteps(request=3, attempt=0, ranks=[0, 1]), part.sent.append, is_running=True)
    [told] = part.sent
    assert isinstance(told, msg.StepsReported)
    assert (told.low, told.high, [*told.pages], told.why, told.parts) == (STEP, STEP + 1, [2], "", {})
    part.node.shard(2, ready=(3,))
    part.part.obey(msg.ReportSteps(request=3, attempt=0, ranks=[0]), part.sent.append, is_running=True)
    [_, told] = part.sent
    assert isinstance(told, msg.StepsReported) and told.parts == {n: Part(n % 2, 2, n == 3) for n in range(4)}
    part.part.obey(msg.ReportSteps(request=3, attempt=1, ranks=[0]), part.sent.append, is_running=True)
    assert part.sent[-1].why and not part.sent[-1].pages  # type: ignore[union-attr]


def test_a_trainers_own_count_is_handed_on(head: Head) -> None:
    head.agreed()
    head.saved(says=STEP)
    head.see("n2", "n3")
    assert head.events and head.says == STEP
