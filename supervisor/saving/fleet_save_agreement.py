"""One call of should_checkpoint() for the ranks of all nodes: all of them say yes to it, or none does.

    AskChecks          ▶ every node that trains
    Checks             ◀ how often its ranks have called, and how often more they may in AHEAD_S
    SetCheckpoint      ▶ a call beyond all of these: it is on the boards from then on, unless the order comes late
    CheckpointSet      ◀ that it is, or why not
    WithdrawCheckpoint ▶ where not all have said so in time, or one could not: off the boards, and the next try

What is on all boards before anybody makes that call is answered with yes by all: nothing more has to arrive. So the
call lies as far ahead as ranks get in AHEAD_S. Counts that are older than COUNT_S are not used; a node sets the call
only within ARRIVE_S of its being sent, by the run's clock; the head waits SET_S for all to say that it is set; what is
left of AHEAD_S is for taking it back. Each try that was taken back doubles all of these: a slow link is met with more
patience.

A node does not set a call that one of its ranks has made, and does not take back one that its ranks have answered:
those of one node are never at odds. A call that is set everywhere is not replaced before it was made: who asks
meanwhile is given that one. What can still go wrong is in docs/preemption.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.saving.save_agreement import (
    SAFETY,
    Boards,
    SaveAgreement,
    armed_call,
    has_answered,
    next_call,
    read_counts,
    set_call,
    was_passed,
)

AHEAD_S = 4.0
"""From a node's reading its boards to the call, at the pace that its ranks have had."""
COUNT_S = 0.5
"""From asking a node for its counts to using them."""
ARRIVE_S = 0.5
SET_S = 1.0
"""Looked at once a second, so up to a second later."""
MOST = 4
"""Tries: the last is made with eight times the patience, and those after it as well."""


Order = msg.AskChecks | msg.SetCheckpoint | msg.WithdrawCheckpoint


class NodeSaveAgreement:
    """A node's part: the head's own, too."""

    def __init__(self, asking: SaveAgreement | None = None) -> None:
        self._asking = asking or SaveAgreement()
        self._set: msg.SetCheckpoint | None = None
        self._is_answered = False

    def sample(self, boards: Boards) -> None:
        """Once a second while ranks run."""
        self._asking.sample(boards)

    def obey(self, order: Order, boards: Boards, attempt: int, now_s: float) -> msg.Checks | msg.CheckpointSet | None:
        """boards: of that attempt. now_s: the run's seconds."""
        if isinstance(order, msg.AskChecks):
            return self._checks(order, boards)
        if attempt != order.attempt:
            boards = {}
        if isinstance(order, msg.SetCheckpoint):
            return self._arm(order, boards, now_s)
        take_back(boards, order.at)
        return None

    def answered(self, boards: Boards) -> list[ev.Event]:
        """What is to be told, once: a rank has said yes."""
        if self._set is None or self._is_answered or not has_answered(boards, self._set.at):
            return []
        self._is_answered = True
        return [ev.CheckpointAnswered(request=self._set.request)]

    def _checks(self, order: msg.AskChecks, boards: Boards) -> msg.Checks:
        counts = read_counts(boards)
        most = max(counts.values(), default=0)
        at_call = next_call(counts, self._asking.pace, order.ahead_s / SAFETY)
        return msg.Checks(
            number=order.number,
            fewest=min(counts.values(), default=0),
            most=most,
            ahead=0 if at_call is None else at_call - most,
            armed=armed_call(boards),
        )

    def _arm(self, order: msg.SetCheckpoint, boards: Boards, now_s: float) -> msg.CheckpointSet:
        no = msg.CheckpointSet(number=order.number, is_set=False)
        if not boards:
            return no
        is_there = armed_call(boards) == order.at or has_answered(boards, order.at)
        if not is_there and (now_s > order.by_s or max(read_counts(boards).values()) >= order.at):
            return no
        self._set, self._is_answered = order, False
        set_call(boards, order.at)
        if was_passed(boards, order.at):
            take_back(boards, order.at)
            return no
        return msg.CheckpointSet(number=order.number, is_set=True)


def take_back(boards: Boards, at_call: int) -> None:
    """Have no rank of this node say yes at that call, unless one has."""
    if armed_call(boards) != at_call or has_answered(boards, at_call):
        return
    set_call(boards, 0)
    if has_answered(boards, at_call):  # in between: then all of this node's are to
        set_call(boards, at_call)


class FleetSaveAgreement:
    """At the head. Times are the run's seconds. The head's own node may answer from within `send`."""

    def __init__(self, send: Callable[[str, Order], object], first_number: int = 0) -> None:
        """first_number: another than an earlier supervisor's, whose answers may still come."""
        self._send = send
        self._number = first_number
        self._parts: dict[str, msg.Checks] = {}
        """By node: the answer to what it was asked last."""
        self._asked: dict[str, tuple[int, float]] = {}
        """By node: with which number, and when."""
        self._order: msg.SetCheckpoint | None = None
        """What is being set."""
        self._nodes: list[str] = []
        self._waiting: set[str] = set()
        """Those that have not said yet that it is."""
        self._due_s = 0.0
        self._done_at = 0
        self._tries = 0

    @property
    def patience(self) -> int:
        """Times all the limits."""
        return 1 << min(self._tries, MOST - 1)

    @property
    def has_silent_rank(self) -> bool:
        """A rank of some node had never called should_checkpoint() when that node was asked last."""
        return any(not part.fewest for part in self._parts.values())

    def forget(self) -> None:
        """Another attempt: its boards are blank."""
        self._parts, self._asked, self._order, self._done_at, self._tries = {}, {}, None, 0, 0

    def on_checks(self, node: str, checks: msg.Checks, now_s: float) -> None:
        """How far a node's ranks are."""
        number, asked_s = self._asked.get(node, (-1, 0.0))
        if checks.number == number and now_s - asked_s <= COUNT_S * self.patience:
            self._parts[node] = checks

    def confirmed(self, node: str, answer: msg.CheckpointSet) -> None:
        """A node has set it, or could not."""
        if self._order is None or answer.number != self._order.number:
            return
        if not answer.is_set:
            self.withdraw()
            return
        self._waiting.discard(node)
        if not self._waiting:
            self._done_at, self._order, self._tries = self._order.at, None, 0

    def tick(self, now_s: float) -> None:
        """Once a second at least: take back what was not set in time."""
        if self._order is not None and now_s >= self._due_s:
            self.withdraw()

    def withdraw(self) -> None:
        """Have nobody answer what is being set; what is set everywhere stays."""
        if self._order is None:
            return
        order, self._order = self._order, None
        self._be_patient()
        for node in self._nodes:
            self._send(node, msg.WithdrawCheckpoint(at=order.at, attempt=order.attempt))

    def ask(self, nodes: Iterable[str], request: int, attempt: int, now_s: float) -> int | None:
        """The call at which all say yes, once it is set on all nodes; None before: call again.

        nodes: all that have ranks of the attempt.
        """
        self.tick(now_s)
        if self._order is None and not self._done_at:
            self._try(list(nodes), request, attempt, now_s)
        at, self._done_at = self._done_at, 0
        return at or None

    def _try(self, nodes: list[str], request: int, attempt: int, now_s: float) -> None:
        parts = self._counts(nodes, now_s)
        if not parts or not all(part.fewest for part in parts):
            return
        most, armed = max(part.most for part in parts), {part.armed for part in parts}
        at, set_before = most + max(part.ahead for part in parts), max(armed)
        if set_before:
            if most >= set_before:
                return  # it is just being answered
            at = set_before if len(armed) == 1 else max(at, set_before)
        self._number += 1
        by_s = now_s + ARRIVE_S * self.patience
        order = msg.SetCheckpoint(at=at, request=request, attempt=attempt, number=self._number, by_s=by_s)
        if len(armed) == 1 and set_before:
            self._done_at = at  # everywhere already: they are only told whose it is as well
        else:
            self._order, self._due_s = order, now_s + SET_S * self.patience
            self._nodes, self._waiting = nodes, set(nodes)
        for node in nodes:
            if self._order is None and not self._done_at:
                break  # the head's own has said no at once
            self._send(node, order)

    def _be_patient(self) -> None:
        """The next try has other limits: what was told for this one does not hold for it."""
        self._tries += 1
        self._parts, self._asked = {}, {}

    def _counts(self, nodes: list[str], now_s: float) -> list[msg.Checks]:
        """All nodes' counts, of about one moment; nothing where some are still to come."""
        limit_s = COUNT_S * self.patience
        if any(now_s - self._asked.get(node, (0, now_s))[1] > limit_s and node not in self._parts for node in nodes):
            self._be_patient()
        for node in nodes:
            number, asked_s = self._asked.get(node, (-1, 0.0))
            if number < 0 or now_s - asked_s > limit_s:
                self._number += 1
                self._asked[node] = (self._number, now_s)
                self._parts.pop(node, None)
                self._send(node, msg.AskChecks(number=self._number, ahead_s=AHEAD_S * self.patience))
        return [self._parts[node] for node in nodes] if all(node in self._parts for node in nodes) else []
