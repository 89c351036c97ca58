"""Ranks of several nodes say yes at the same call, or none does, whatever links do to the messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.engine.model.events import CheckpointAnswered
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.saving.fleet_save_agreement import (
    AHEAD_S,
    COUNT_S,
    SET_S,
    FleetSaveAgreement,
    NodeSaveAgreement,
    Order,
)
from guardrun.supervisor.saving.save_agreement import Boards, SaveAgreement

WITHDRAW_S = AHEAD_S - COUNT_S - SET_S - 1.0
"""What is left for a WithdrawCheckpoint: the head looks once a second."""
ATTEMPT = 3
Delay = Callable[[str, object], float | None]
"""Seconds that a message to or from a node takes; None: it never arrives, nor does any after it."""


class Paced(SaveAgreement):
    """As if ranks had been followed for a while."""

    def __init__(self, pace: float) -> None:
        super().__init__()
        self._pace = pace

    @property
    def pace(self) -> float:
        return self._pace


class Rank:
    """A board, and what hooks/rank/rank.py does with it."""

    def __init__(self) -> None:
        self.words = {Field.CHECKS: 0, Field.CHECKPOINT_AT: 0, Field.CHECKPOINT_ACK: 0}
        self.yes: list[int] = []

    def read(self) -> dict[Field, int]:
        return self.words

    def write(self, field: Field, value: int) -> None:
        self.words[field] = value

    def call(self) -> None:
        checks = self.words[Field.CHECKS] = self.words[Field.CHECKS] + 1
        at = self.words[Field.CHECKPOINT_AT]
        if at and at != self.words[Field.CHECKPOINT_ACK] and checks >= at:
            self.words[Field.CHECKPOINT_ACK] = at
            self.yes.append(checks)


class Job:
    """Nodes of two ranks in step with each other; `n0` is the head's own. Time is what the next event says."""

    def __init__(self, pace: float, delay: Delay, skew_s: float = 0.0, nodes: int = 3, slower: float = 1.0) -> None:
        """pace: calls a second, as it was measured. slower: how much slower they are now. skew_s: of nodes' clocks."""
        self.now_s = 0.0
        self.names = [f"n{number}" for number in range(nodes)]
        self.ranks = {name: [Rank(), Rank()] for name in self.names}
        self.parts = {name: NodeSaveAgreement(Paced(pace)) for name in self.names}
        self.head = FleetSaveAgreement(self._down, 1 << 61)
        self.agreed: list[int] = []
        self._delay, self._skew_s = delay, skew_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._clear_s: dict[tuple[str, str], float] = {}
        for rank in self.all_ranks:
            rank.words[Field.CHECKS] = 100
        self._every(1.0 / (pace * slower), self._step)
        self._every(1.0, self._poll)

    @property
    def all_ranks(self) -> list[Rank]:
        return [rank for ranks in self.ranks.values() for rank in ranks]

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()

    def check(self) -> None:
        """All or none."""
        said = {tuple(rank.yes) for rank in self.all_ranks}
        assert len(said) == 1, {name: [rank.yes for rank in ranks] for name, ranks in self.ranks.items()}

    def boards(self, name: str) -> Boards:
        return cast("Boards", dict(enumerate(self.ranks[name])))

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _every(self, every_s: float, event: Callable[[], None]) -> None:
        def turn() -> None:
            event()
            self._at(self.now_s + every_s, turn)

        self._at(every_s, turn)

    def _poll(self) -> None:
        self.head.tick(self.now_s)
        self._ask()

    def _ask(self) -> None:
        if not self.agreed and (at := self.head.ask(self.names, 7, ATTEMPT, self.now_s)) is not None:
            self.agreed.append(at)

    def _send(self, way: str, name: str, message: object, arrives: Callable[[], None]) -> None:
        """In order, as envelopes.py has it."""
        took_s = self._delay(name, message)
        if took_s is None:
            took_s = float("inf")
        at_s = max(self._clear_s.get((way, name), 0.0), self.now_s + took_s)
        self._clear_s[way, name] = at_s
        if at_s < float("inf"):
            self._at(at_s, arrives)

    def _down(self, name: str, order: Order) -> None:
        if name == "n0":
            self._obey(name, order)
        else:
            self._send("down", name, order, lambda: self._obey(name, order))

    def _obey(self, name: str, order: Order) -> None:
        clock_s = self.now_s + (self._skew_s if name != "n0" else 0.0)
        answer = self.parts[name].obey(order, self.boards(name), ATTEMPT, clock_s)
        if answer is None:
            return
        if name == "n0":
            self._told(name, answer)
        else:
            self._send("up", name, answer, lambda: self._heard(name, answer))

    def _step(self) -> None:
        for rank in self.all_ranks:
            rank.call()

    def _heard(self, name: str, answer: msg.Checks | msg.CheckpointSet) -> None:
        self._told(name, answer)
        self._ask()

    def _told(self, name: str, answer: msg.Checks | msg.CheckpointSet) -> None:
        if isinstance(answer, msg.Checks):
            self.head.on_checks(name, answer, self.now_s)
        else:
            self.head.confirmed(name, answer)


paces = st.floats(0.3, 12)
quick = st.floats(0.0, 0.2)


@given(pace=paces, delay_s=quick, skew_s=st.floats(-0.2, 0.2))
@settings(max_examples=40, deadline=None)
def test_all_say_yes_at_one_call_within_seconds(pace: float, delay_s: float, skew_s: float) -> None:
    job = Job(pace, lambda node, message: delay_s, skew_s)
    job.run(4.0)
    assert job.agreed
    job.run(AHEAD_S + 4.0 + 3 / pace)
    job.check()
    assert job.all_ranks[0].yes == job.agreed


@given(pace=paces, up_s=st.floats(0, 40), down_s=st.floats(0, 40), slower=st.floats(0.2, 1.0))
@settings(max_examples=50, deadline=None)
def test_a_link_that_is_slow_either_way_sets_nobody_at_odds(
    pace: float, up_s: float, down_s: float, slower: float
) -> None:
    def delay(node: str, message: object) -> float:
        is_up = isinstance(message, msg.Checks | msg.CheckpointSet)
        return (up_s if is_up else down_s) if node == "n2" else 0.05

    job = Job(pace, delay, slower=slower)
    job.run(90.0)
    job.check()
    if up_s + down_s < 3.0:
        assert job.agreed, "a slow link is met with patience"


@given(data=st.data(), pace=paces, slower=st.floats(0.2, 1.0))
@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_whatever_is_late_is_taken_back(data: st.DataObject, pace: float, slower: float) -> None:
    """Every message takes as long as it likes, or is lost for good; but what takes back what was set in time."""

    def delay(node: str, message: object) -> float | None:
        if isinstance(message, msg.WithdrawCheckpoint):
            return data.draw(st.floats(0, WITHDRAW_S - 0.1))
        if data.draw(st.integers(0, 9)) == 0:
            is_up = isinstance(message, msg.Checks | msg.CheckpointSet)
            if is_up or isinstance(message, msg.SetCheckpoint):
                return data.draw(st.sampled_from([0.5, 3.0, 6.0, 20.0]))
        return data.draw(quick)

    job = Job(pace, delay, slower=slower)
    job.run(40.0)
    job.check()


@pytest.mark.parametrize("after", [msg.AskChecks, msg.SetCheckpoint])
def test_a_node_that_is_cut_off_meanwhile(after: type) -> None:
    """Before the call is set there: nobody says yes."""
    job = Job(4.0, lambda node, message: None if node == "n2" and isinstance(message, after) else 0.05)
    job.run(60.0)
    job.check()
    assert not job.agreed and not job.all_ranks[0].yes


def test_who_asks_while_a_call_is_set_is_given_that_one() -> None:
    job = Job(4.0, lambda node, message: 0.05)
    job.run(2.0)
    [first] = job.agreed
    job.agreed.clear()
    job.run(3.5)
    assert job.agreed == [first]
    job.run(AHEAD_S + 5.0)
    job.check()
    assert job.all_ranks[0].yes == [first]


def test_an_order_for_another_attempt_is_not_set() -> None:
    job = Job(4.0, lambda node, message: 0.05)
    order = msg.SetCheckpoint(at=500, attempt=ATTEMPT - 1, number=1, by_s=100.0)
    assert job.parts["n1"].obey(order, job.boards("n1"), ATTEMPT, 0.0) == msg.CheckpointSet(number=1, is_set=False)
    assert not job.ranks["n1"][0].words[Field.CHECKPOINT_AT]


def test_what_a_rank_has_answered_is_not_taken_back_from_its_neighbour() -> None:
    job = Job(4.0, lambda node, message: 0.05)
    part, ranks, boards = job.parts["n1"], job.ranks["n1"], job.boards("n1")
    part.obey(msg.SetCheckpoint(at=101, attempt=ATTEMPT, number=1, by_s=100.0), boards, ATTEMPT, 0.0)
    ranks[0].call()
    part.obey(msg.WithdrawCheckpoint(at=101, attempt=ATTEMPT), boards, ATTEMPT, 0.0)
    ranks[1].call()
    assert [rank.yes for rank in ranks] == [[101], [101]]
    assert part.answered(boards) == [CheckpointAnswered(request=0)] and not part.answered(boards)
