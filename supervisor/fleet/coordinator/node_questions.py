"""What a person asks all nodes by way of the head, and nothing is decided by: looks, and what boards show."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from guardrun.supervisor.collect.ranks.look import LookResult, limit_s
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.fleet.protocol import messages as msg
from guardrun.supervisor.wire.control_messages import RankRow, Shares

# Requests -----------------------------------------------------------------------------------------------------------
# What is asked of the nodes of some ranks: over once all have answered, or their time is up.
#
# Whoever has not answered by then is missing from the answer, and said to be.


Reply = TypeVar("Reply", msg.Looked, msg.Examined)


@dataclass
class _Question(Generic[Reply]):
    nodes: dict[str, list[int]]
    """Who is asked → about which ranks."""
    by_s: float
    end: Callable[[list[Reply], dict[int, str]], object]
    """Called with the answers, and why ranks are missing."""
    answers: dict[str, Reply] = field(default_factory=dict)


@dataclass
class _Requests(Generic[Reply]):
    """Runs on the loop's thread."""

    send: Callable[[str, msg.Down], object]
    _questions: dict[int, _Question[Reply]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def _ask(
        self,
        ranks: Iterable[Rank],
        make: Callable[[int, list[int]], msg.Down],
        limit_s: Callable[[int], float],
        end: Callable[[list[Reply], dict[int, str]], object],
    ) -> None:
        """Ask the nodes of these ranks, if any.

        make: of a question's number and a node's ranks. limit_s: for how long, of the most ranks that one node has.
        """
        nodes: dict[str, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(rank.node, []).append(rank.global_rank)
        number = next(self._numbers)
        for node, wanted in nodes.items():
            self.send(node, make(number, wanted))
        most = max(map(len, nodes.values()), default=0)
        self._questions[number] = _Question(nodes, time.monotonic() + limit_s(most), end)
        self._try_end(number)

    def answered(self, node: str, answer: Reply) -> None:
        """A node's part."""
        question = self._questions.get(answer.ask)
        if question is not None and node in question.nodes:
            question.answers[node] = answer
            self._try_end(answer.ask)

    def poll(self) -> None:
        """Once a second."""
        for number in list(self._questions):
            self._try_end(number)

    def _try_end(self, number: int) -> None:
        question = self._questions[number]
        if len(question.answers) < len(question.nodes) and time.monotonic() < question.by_s:
            return
        del self._questions[number]
        parts = list(question.answers.values())
        missing = {rank: why for part in parts for rank, why in part.missing.items()}
        for node, wanted in question.nodes.items():
            if node not in question.answers:
                missing |= dict.fromkeys(wanted, f"{node} did not answer")
        question.end(parts, missing)


MARGIN_S = 2.0
"""Beyond a look's own limit: the way there and back."""


class LookRequests(_Requests[msg.Looked]):
    """What a person wants to see of all nodes now: looks that nothing is decided by."""

    def look(self, ranks: Iterable[Rank], samples: int, done: Callable[[LookResult], object]) -> None:
        """Have other nodes' ranks looked at; done: called once, at once where there are none."""

        def end(parts: list[msg.Looked], missing: dict[int, str]) -> None:
            took_s = max((part.took_s for part in parts), default=0.0)
            done(LookResult([look for part in parts for look in part.ranks], missing, took_s))

        self._ask(
            ranks,
            lambda number, wanted: msg.LookNow(ask=number, ranks=wanted, samples=samples),
            lambda most: limit_s(most) + MARGIN_S,
            end,
        )


EXAMINATION_MARGIN_S = 60.0
"""Beyond the time that it takes there: a node answers for ranks that do not by then."""

OnExamined = Callable[[dict[int, dict[str, Any]], dict[int, str]], object]
"""Called with what ranks have told, and why others have not."""


class ExaminationRequests(_Requests[msg.Examined]):
    """What ranks of other nodes find out about themselves, because a person wants to know."""

    def ask(
        self, ranks: Iterable[Rank], what: str, arguments: dict[str, Any], seconds: float, done: OnExamined
    ) -> None:
        """Have other nodes' ranks do what is asked; done: called once, at once where there are none."""
        self._ask(
            ranks,
            lambda number, wanted: msg.Examine(
                ask=number, ranks=wanted, what=what, arguments=arguments, seconds=seconds
            ),
            lambda _: seconds + EXAMINATION_MARGIN_S,
            lambda parts, missing: done({rank: told for part in parts for rank, told in part.answers.items()}, missing),
        )


# Rank boards --------------------------------------------------------------------------------------------------------
# What other nodes' boards show: asked for when somebody asks the head how the run is doing, and told at its end.
#
# Reports bring every second what has changed, which is all that decisions take; step times, shares and beats of tens of
# thousands of ranks would double them, for figures that nobody looks at. So they are fetched. However often the head is
# asked, what that costs stays a share of a core: the nodes are asked again only after a while that grows with their
# number. Whoever does not answer in time is told as it was last seen, with how long ago that was.


LIMIT_S = 1.0
"""A node answers within milliseconds; guardctl waits five seconds for all."""
LIMIT_PER_NODE_S = 0.0001
AGAIN_PER_NODE_S = 0.001
"""Order and answer take the head a fraction of that: two packets, of which it handles 12,500 a second."""
MAX_NOTES = 200


@dataclass
class _NodeAnswer:
    attempt: int
    at_s: float
    """The run's seconds."""
    rows: dict[int, RankRow]
    notes: list[str]
    failed_hooks: list[str]


@dataclass
class Boards:
    """Runs on the loop's thread."""

    send: Callable[[str, msg.Down], object]
    _answers: dict[str, _NodeAnswer] = field(default_factory=dict)
    _number: int = 0
    """Of the last question."""
    _asked_s: float = float("-inf")
    _limit_s: float = LIMIT_S
    _again_s: float = 0.0
    _awaited: set[str] = field(default_factory=set)
    _waiting: list[Callable[[], object]] = field(default_factory=list)
    _ended: int = -1
    """The newest attempt whose shares have been told, by some of its nodes."""
    _shares: dict[str, Shares] = field(default_factory=dict)

    # Right now -----------------------------------------------------------------------------------------------

    def ask(self, nodes: Collection[str], done: Callable[[], object]) -> None:
        """Have nodes tell what their boards show.

        done: called once they have, or their time is up; at once where nobody is to be asked, or all were a moment ago.
        """
        now = time.monotonic()
        if not self._awaited and now - self._asked_s >= self._again_s:
            self._number += 1
            self._asked_s, self._awaited = now, set(nodes)
            self._limit_s = LIMIT_S + len(nodes) * LIMIT_PER_NODE_S
            self._again_s = len(nodes) * AGAIN_PER_NODE_S
            for node in nodes:
                self.send(node, msg.ReportBoards(ask=self._number))
        self._waiting.append(done)
        self._try_end()

    def answered(self, node: str, answer: msg.BoardsReported) -> None:
        """A node's part, which may come late."""
        rows = {row.global_rank: row for row in answer.rows}
        self._answers[node] = _NodeAnswer(answer.attempt, answer.at_s, rows, answer.notes, answer.failed_hooks)
        if answer.ask == self._number:
            self._awaited.discard(node)
            self._try_end()

    def poll(self) -> None:
        """Once a second."""
        if time.monotonic() - self._asked_s >= self._limit_s:
            self._awaited.clear()
        self._try_end()

    def _try_end(self) -> None:
        if self._awaited:
            return
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    def row(self, node: str, attempt: int, global_rank: int, now_s: float) -> tuple[RankRow, float] | None:
        """What a rank's board showed, and how many seconds ago; None where that was never told."""
        told = self._answers.get(node)
        if told is None or told.attempt != attempt or global_rank not in told.rows:
            return None
        return told.rows[global_rank], max(0.0, now_s - told.at_s)

    def notes(self, attempt: int | None) -> list[str]:
        """What hooks in the other nodes' ranks had to note (`rank 3: topic: text`); at most MAX_NOTES."""
        return self._said(told.notes for told in self._answers.values() if told.attempt == attempt)

    def failed_hooks(self, attempt: int | None) -> list[str]:
        """Hooks that failed in the other nodes' ranks, a line each (`rank 3: HOOK: error`); at most MAX_NOTES."""
        return self._said(told.failed_hooks for told in self._answers.values() if told.attempt == attempt)

    def _said(self, parts: Iterable[list[str]]) -> list[str]:
        return [text for part in parts for text in part][:MAX_NOTES]

    # At the end ----------------------------------------------------------------------------------------------

    def shares_told(self, node: str, told: msg.SharesReported) -> None:
        """Of an attempt that has ended there."""
        if told.attempt > self._ended:
            self._ended, self._shares = told.attempt, {}
        if told.attempt == self._ended:
            self._shares[node] = told.ranks

    def shares(self, attempt: int, nodes: Collection[str]) -> tuple[Shares, list[str]]:
        """What these nodes' ranks spent an attempt's time on, and the nodes that have not said so."""
        known = self._shares if attempt == self._ended else {}
        ranks = {rank: share for node in nodes for rank, share in known.get(node, {}).items()}
        return ranks, sorted(set(nodes) - set(known))
