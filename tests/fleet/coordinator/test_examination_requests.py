"""Ranks of other nodes that are asked to examine themselves: together, each once, and in bounded time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.fleet.coordinator import node_questions as module
from guardrun.supervisor.fleet.coordinator.node_questions import ExaminationRequests
from guardrun.supervisor.fleet.protocol import messages as msg


class Head:
    """Requests, what was sent, and what came of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, msg.Examine]] = []
        self.requests = ExaminationRequests(self._send)
        self.ended: list[tuple[dict[int, Any], dict[int, str]]] = []

    def _send(self, node: str, order: msg.Down) -> None:
        assert isinstance(order, msg.Examine)
        self.sent.append((node, order))

    def ask(self, *ranks: int) -> None:
        asked = [Rank(global_rank=n, local_rank=0, pid=n, node=f"node-{n // 2}") for n in ranks]
        self.requests.ask(asked, "allocations", {"seconds": 20}, 20.0, lambda *told: self.ended.append(told))

    def tell(self, node: str, ask: int, *ranks: int, missing: dict[int, str] | None = None) -> None:
        answers = {rank: {"sites": [rank]} for rank in ranks}
        self.requests.answered(node, msg.Examined(ask=ask, answers=answers, missing=missing or {}))


@pytest.fixture
def head() -> Head:
    return Head()


def test_nodes_are_asked_about_their_ranks_and_answer_together(head: Head) -> None:
    head.ask(2, 3, 5)
    assert [(node, order.ranks, order.what, order.seconds) for node, order in head.sent] == [
        ("node-1", [2, 3], "allocations", 20.0),
        ("node-2", [5], "allocations", 20.0),
    ]
    head.tell("node-1", 1, 2, missing={3: "it is stopped"})
    head.requests.poll()
    assert head.ended == []
    head.tell("node-2", 1, 5)
    assert head.ended == [({2: {"sites": [2]}, 5: {"sites": [5]}}, {3: "it is stopped"})]
    head.tell("node-2", 1, 5)
    head.requests.poll()
    assert len(head.ended) == 1


def test_nobody_to_ask_is_no_wait(head: Head) -> None:
    head.ask()
    assert head.ended == [({}, {})] and head.sent == []


def test_two_questions_are_told_apart(head: Head) -> None:
    head.ask(2)
    head.ask(3)
    head.tell("node-1", 2, 3)
    head.tell("node-9", 1, 2)
    assert head.ended == [({3: {"sites": [3]}}, {})]


def test_a_node_that_does_not_answer_is_said_not_to(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXAMINATION_MARGIN_S", -20.0)
    head.ask(2, 3)
    head.requests.poll()
    assert head.ended == [({}, {2: "node-1 did not answer", 3: "node-1 did not answer"})]
    head.tell("node-1", 1, 2)
    assert len(head.ended) == 1


def test_both_pass_the_wire() -> None:
    order = msg.Examine(ask=1, ranks=[2], what="allocations", arguments={"seconds": 20.5}, seconds=20.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=msg.Down) == order
    answer = msg.Examined(ask=1, answers={2: {"sites": [{"file": "a"}]}}, missing={3: "no"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=msg.Up) == answer
