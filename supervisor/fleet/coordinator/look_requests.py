"""What a person wants to see of all nodes now: looks that nothing is decided by.

Whoever has not answered in time is missing from the answer, and said to be.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from guardrun.supervisor.collect.ranks.look import LookResult, limit_s
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.fleet.protocol import messages as msg

MARGIN_S = 2.0
"""Beyond a look's own limit: the way there and back."""


@dataclass
class _Question:
    nodes: dict[str, list[int]]
    """Who is asked → about which ranks."""
    by_s: float
    done: Callable[[LookResult], object]
    answers: dict[str, msg.Looked] = field(default_factory=dict)


@dataclass
class LookRequests:
    """Runs on the loop's thread."""

    send: Callable[[str, msg.Down], object]
    _questions: dict[int, _Question] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def look(self, ranks: Iterable[Rank], samples: int, done: Callable[[LookResult], object]) -> None:
        """Have other nodes' ranks looked at; done: called once, at once where there are none."""
        nodes: dict[str, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(rank.node, []).append(rank.global_rank)
        number = next(self._numbers)
        for node, wanted in nodes.items():
            self.send(node, msg.LookNow(ask=number, ranks=wanted, samples=samples))
        most = max(map(len, nodes.values()), default=0)
        question = _Question(nodes, time.monotonic() + limit_s(most) + MARGIN_S, done)
        self._questions[number] = question
        self._try_end(number, question)

    def answered(self, node: str, answer: msg.Looked) -> None:
        """A node's part."""
        question = self._questions.get(answer.ask)
        if question is not None and node in question.nodes:
            question.answers[node] = answer
            self._try_end(answer.ask, question)

    def poll(self) -> None:
        """Once a second."""
        for number, question in list(self._questions.items()):
            self._try_end(number, question)

    def _try_end(self, number: int, question: _Question) -> None:
        is_whole = len(question.answers) == len(question.nodes)
        if not is_whole and time.monotonic() < question.by_s:
            return
        del self._questions[number]
        parts = question.answers.values()
        missing = {rank: why for part in parts for rank, why in part.missing.items()}
        for node, wanted in question.nodes.items():
            if node not in question.answers:
                missing |= dict.fromkeys(wanted, f"{node} did not answer")
        took_s = max((part.took_s for part in parts), default=0.0)
        question.done(LookResult([look for part in parts for look in part.ranks], missing, took_s))
