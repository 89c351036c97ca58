"""What other nodes' boards show: asked for, waited for, and told with how old it is."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.fleet.coordinator import node_questions as module
from guardrun.supervisor.fleet.coordinator.node_questions import Boards
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.wire.control_messages import RankRow
from tests.support.waiting import wait_until


class Head:
    """Boards, what was sent, and who was answered when."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.boards = Boards(self._send)
        self.answered: list[str] = []

    def _send(self, node: str, order: msg.Down) -> None:
        assert isinstance(order, msg.ReportBoards)
        self.sent.append((node, order.ask))

    def ask(self, who: str, *nodes: str) -> None:
        self.boards.ask(nodes, lambda: self.answered.append(who))

    def told(self, node: str, ask: int, *, at_s: float = 10.0, rank: int = 1, note: str = "") -> None:
        row = RankRow(global_rank=rank, step=5, step_time_s=0.05, beat_age_s=0.2)
        notes = [note] if note else []
        self.boards.answered(node, msg.BoardsReported(ask=ask, attempt=2, at_s=at_s, rows=[row], notes=notes))


@pytest.fixture
def head() -> Head:
    return Head()


def test_whoever_asks_is_answered_once_all_nodes_have_told(head: Head) -> None:
    head.ask("first", "a", "b")
    head.ask("second", "a", "b")
    assert head.sent == [("a", 1), ("b", 1)], "one question, whoever asks meanwhile"
    head.told("a", 1)
    assert head.answered == []
    head.told("b", 1, rank=2)
    assert head.answered == ["first", "second"]
    assert head.boards.row("b", 2, 2, 10.5) == (RankRow(global_rank=2, step=5, step_time_s=0.05, beat_age_s=0.2), 0.5)
    assert head.boards.row("b", 2, 1, 10.5) is None and head.boards.row("b", 3, 2, 10.5) is None
    assert head.boards.row("c", 2, 2, 10.5) is None


def test_nobody_to_ask_is_no_wait(head: Head) -> None:
    head.ask("first")
    assert head.answered == ["first"] and head.sent == []


def test_a_node_that_does_not_answer_is_waited_for_no_longer_than_its_time(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    head.ask("first", "a", "b")
    head.told("a", 1)
    assert head.answered == []

    def is_over() -> bool:
        head.boards.poll()
        return head.answered == ["first"]

    wait_until(is_over, 5.0, "the end of the question")
    head.told("b", 1, at_s=9.0)
    assert head.boards.row("b", 2, 1, 12.0) is not None, "late, but as good as any"


def test_however_often_the_head_is_asked_its_nodes_are_left_alone(head: Head) -> None:
    nodes = [f"n{number}" for number in range(5000)]
    head.ask("first", *nodes)
    for number, node in enumerate(nodes):
        head.told(node, 1, rank=number)
    for number in range(10):
        head.ask(str(number), *nodes)
    assert len(head.answered) == 11 and len(head.sent) == 5000


def test_what_hooks_say_is_of_the_attempt_that_runs(head: Head) -> None:
    head.told("a", 0, note="rank 1: gc policy: not followed")
    assert head.boards.notes(2) == ["rank 1: gc policy: not followed"]
    assert head.boards.notes(3) == [] and head.boards.notes(None) == [] and head.boards.failed_hooks(2) == []


def test_shares_are_those_of_the_newest_attempt(head: Head) -> None:
    boards = head.boards
    boards.shares_told("a", msg.SharesReported(attempt=0, ranks={1: (0.5, 0.0)}))
    boards.shares_told("b", msg.SharesReported(attempt=1, ranks={2: (0.1, 0.0)}))
    boards.shares_told("a", msg.SharesReported(attempt=0, ranks={1: (0.5, 0.0)}))
    assert boards.shares(1, {"a", "b"}) == ({2: (0.1, 0.0)}, ["a"])
    assert boards.shares(0, {"a"}) == ({}, ["a"])
    boards.shares_told("a", msg.SharesReported(attempt=1, ranks={}))
    assert boards.shares(1, {"a", "b"}) == ({2: (0.1, 0.0)}, []), "a node whose ranks have no hooks has told that"
    assert boards.shares(1, {"b"}) == ({2: (0.1, 0.0)}, [])


def test_on_the_wire_a_node_of_eight_ranks_says_all_in_a_few_hundred_bytes() -> None:
    rows = [
        RankRow(global_rank=rank, has_hooks=True, step=123456, step_time_s=0.0512, phase="train", data_share=0.12)
        for rank in range(100_000, 100_008)
    ]
    told = msg.BoardsReported(ask=1, attempt=2, at_s=1234.5678, rows=rows)
    shares = msg.SharesReported(attempt=2, ranks={row.global_rank: (0.12, 0.03) for row in rows})
    for message, limit in ((told, 500), (shares, 300)):
        data = msgspec.msgpack.encode(message)
        assert len(data) < limit
        assert msgspec.msgpack.decode(data, type=msg.Up) == message
