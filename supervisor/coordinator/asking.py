"""One call of should_checkpoint() for the ranks of all nodes: the head asks each how far its own are, and tells all.

    AskChecks  ▶ every node that trains
    Checks     ◀ how often its ranks have asked, and how often more they may by the time that an order has arrived
    SetCheckpoint ▶ a call beyond all of these
Answers that are not of the same moment say nothing together: they are asked for anew until they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from guardrun.supervisor.asking import Asking, Boards, has_answered, next_call, read_counts, set_call
from guardrun.supervisor.coordinator import messages as msg
from guardrun.supervisor.core import events as ev

WAY_S = 1.0
"""From a node's reading its boards to its having written the answer: two messages, and whatever holds them up."""
FRESH_S = WAY_S / 2
AGAIN_S = 0.4


def checks_of(asking: Asking, boards: Boards) -> msg.Checks:
    """A node's part."""
    counts = read_counts(boards)
    most = max(counts.values(), default=0)
    at_call = next_call(counts, asking.pace, WAY_S)
    return msg.Checks(fewest=min(counts.values(), default=0), most=most, ahead=0 if at_call is None else at_call - most)


class FleetAsking:
    """At the head. Times are seconds of any one clock."""

    def __init__(self, send: Callable[[str, msg.Down], object]) -> None:
        self._send = send
        self._parts: dict[str, tuple[float, msg.Checks]] = {}
        self._asked_s: dict[str, float] = {}

    def told(self, node: str, checks: msg.Checks, now_s: float) -> None:
        """A node's answer."""
        self._parts[node] = (now_s, checks)

    def ask(self, own: msg.Checks | None, nodes: Iterable[str], now_s: float) -> int | None:
        """The call at which all can say yes; None while it cannot be told yet: call again.

        own: the head's part, None where it has no ranks. nodes: the others that have.
        """
        parts = [] if own is None else [own]
        is_whole = True
        for node in nodes:
            told_s, checks = self._parts.get(node, (0.0, None))
            if checks is not None and now_s - told_s < FRESH_S:
                parts.append(checks)
                continue
            is_whole = False
            if now_s - self._asked_s.get(node, now_s - AGAIN_S) >= AGAIN_S:
                self._asked_s[node] = now_s
                self._send(node, msg.AskChecks())
        if not is_whole or not parts or not all(part.fewest for part in parts):
            return None
        return max(part.most for part in parts) + max(part.ahead for part in parts)

    def set(self, nodes: Iterable[str], at_call: int, request: int) -> None:
        """Tell the other nodes."""
        for node in nodes:
            self._send(node, msg.SetCheckpoint(at=at_call, request=request))


class NodeAsking:
    """At every other node."""

    def __init__(self) -> None:
        self._asking = Asking()
        self._set: msg.SetCheckpoint | None = None
        self._is_answered = False

    def sample(self, boards: Boards) -> None:
        """Once a second while ranks run."""
        self._asking.sample(boards)

    def checks(self, boards: Boards) -> msg.Checks:
        return checks_of(self._asking, boards)

    def set(self, order: msg.SetCheckpoint, boards: Boards) -> None:
        self._set, self._is_answered = order, False
        set_call(boards, order.at)

    def answered(self, boards: Boards) -> list[ev.Event]:
        """What is to be told, once: a rank has said yes."""
        if self._set is None or self._is_answered or not has_answered(boards, self._set.at):
            return []
        self._is_answered = True
        return [ev.CheckpointAnswered(request=self._set.request)]
