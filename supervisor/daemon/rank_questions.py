"""What a person wants ranks to find out about themselves (hooks/examine/), on this node and the others: one answer."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from guardrun.hooks.wire.examinations import MAX_SECONDS, PROFILE, STOP
from guardrun.supervisor.daemon.module_traces import MODULES, answer_bytes, keep_traces
from guardrun.supervisor.daemon.profiles import ProfileRequest, keep_profiles
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.run_context import EngineContext
from guardrun.supervisor.rundir.profiles import begin_profile
from guardrun.supervisor.wire.control_messages import Answer, Ask

if TYPE_CHECKING:
    from guardrun.supervisor.fleet.coordinator.coordinator import Coordinator

EXAMINE = "examine"
"""The verb of an Ask."""
MAX_RANKS = 64
"""At once."""
ALL = "all"
"""In place of their numbers: all that live, up to the limit."""


class QuestionsNode(RankContext, Protocol):
    """What is used of the node's supervisor."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""

    def send_to(self, peer: bytes, message: Answer) -> None:
        """Send an answer to one peer; dropped where ZeroMQ does not take it at once."""


class QuestionsContext(EngineContext, Protocol):
    """What is used of the daemon."""

    @property
    def fleet(self) -> Coordinator | None:
        """Asks the other nodes; None in a job of one."""


class _Mistake(Exception):
    """What is asked for can't be done; in words for whoever asked."""


class _Asking(NamedTuple):
    """What somebody has asked, and of whom."""

    peer: bytes
    what: str
    wanted: list[int]
    arguments: dict[str, Any]
    seconds: float
    attempt: int
    alive: dict[int, ev.Rank]


class RankQuestions:
    """Runs on the loop's thread."""

    def __init__(self, node: QuestionsNode, context: QuestionsContext) -> None:
        self._node, self._context = node, context

    def answer(self, peer: bytes, ask: Ask) -> None:
        """Answer once all ranks have, or can't.

        Arguments: `ranks` (numbers, or ALL), `what`, `arguments`, `seconds`, `who`.
        """
        try:
            self._ask(peer, ask.arguments)
        except _Mistake as error:
            self._node.send_to(peer, Answer(is_ok=False, error=str(error)))

    def _ask(self, peer: bytes, asked: dict[str, Any]) -> None:
        alive = self._alive()
        wanted = _numbers(asked.get("ranks"), alive, None if asked.get("what") == STOP else MAX_RANKS)
        what, arguments, seconds = asked.get("what"), asked.get("arguments", {}), asked.get("seconds", 0.0)
        if not isinstance(what, str) or not isinstance(arguments, dict) or not isinstance(seconds, int | float):
            raise _Mistake("it is not said what is to be examined")
        if not 0 <= seconds <= MAX_SECONDS:
            raise _Mistake(f"ranks are examined for {MAX_SECONDS:.0f} seconds at most")
        state, node = self._context.engine.state, self._node
        if state.phase is not Phase.RUNNING or state.attempt is None:
            raise _Mistake(f"no attempt runs: it is {state.phase.value}")
        who = str(asked.get("who", "somebody"))[:100]
        attempt = state.attempt.number
        if what != STOP:
            node.feed(
                ev.ExaminationAsked(
                    attempt=attempt, global_ranks=wanted, what=what[:40], seconds=float(seconds), who=who
                )
            )
        if what == MODULES:
            arguments = {**arguments, "bytes": answer_bytes(len(wanted))}
        asking = _Asking(peer, what, wanted, arguments, float(seconds), attempt, alive)
        if what == PROFILE:
            self._number(asking)
        else:
            self._ask_all(asking)

    def _number(self, asking: _Asking) -> None:
        """Take the number by which profiles are kept; then ask."""
        node = self._node

        def work() -> None:
            try:
                number = begin_profile(node.run_dir)
            except OSError as error:
                why = f"nothing can be kept in {node.run_dir}: {error.strerror or error}"
                node.post(lambda: node.send_to(asking.peer, Answer(is_ok=False, error=why)))
                return
            numbered = asking._replace(arguments={**asking.arguments, "number": number})
            node.post(lambda: self._ask_all(numbered))

        with suppress(RuntimeError):  # closing
            node.pool.submit(work)

    def _ask_all(self, asking: _Asking) -> None:
        """Here, and on the other nodes; answer when all have."""
        node, wanted, alive = self._node, asking.wanted, asking.alive
        here = [number for number in wanted if number in node.ingest.ranks]
        parts: list[tuple[dict[int, dict[str, Any]], dict[int, str]]] = []

        def join(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            parts.append((answers, missing))
            if len(parts) == 2:
                told = {number: one for part, _ in parts for number, one in sorted(part.items())}
                silent = {number: why for _, part in parts for number, why in sorted(part.items())}
                nodes = {number: alive[number].node for number in wanted}
                if asking.what in (MODULES, PROFILE) and told:
                    self._keep(asking, told, silent, nodes)
                else:
                    node.send_to(asking.peer, _answer(told, silent, nodes))

        terms = asking.what, asking.arguments, asking.seconds
        if self._context.fleet is None:
            join({}, {})
        else:
            elsewhere = [alive[number] for number in wanted if number not in here]
            self._context.fleet.examinations.ask(elsewhere, *terms, join)
        node.examinations.ask(here, *terms, join)

    def _keep(
        self, asking: _Asking, told: dict[int, dict[str, Any]], silent: dict[int, str], nodes: dict[int, str]
    ) -> None:
        """Write what they have measured, whether or not anybody still waits for it; then answer."""
        node = self._node
        at_s = node.clock.now()

        def work() -> None:
            if asking.what == PROFILE:
                number = asking.arguments["number"]
                kept, missing = keep_profiles(node.run_dir, ProfileRequest(number, asking.attempt, at_s), told, nodes)
            else:
                number, kept, missing = keep_traces(node.run_dir, told, nodes, asking.attempt, at_s)
            answer = _answer(kept, {**silent, **missing}, nodes, number=number)
            node.post(lambda: node.send_to(asking.peer, answer))

        with suppress(RuntimeError):  # closing
            node.pool.submit(work)

    def _alive(self) -> dict[int, ev.Rank]:
        """This node's ranks, and the other nodes'."""
        fleet = self._context.fleet
        others = fleet.other_ranks() if fleet is not None else []
        return {**self._node.ingest.ranks, **{rank.global_rank: rank for rank in others}}


def _answer(told: dict[int, Any], missing: dict[int, str], nodes: dict[int, str], **more: object) -> Answer:
    parts = {"ranks": told, "missing": missing, "nodes": nodes}
    by_text = {name: {str(number): one for number, one in sorted(part.items())} for name, part in parts.items()}
    return Answer(is_ok=True, data={**by_text, **more})


def _numbers(wanted: object, alive: dict[int, ev.Rank], limit: int | None) -> list[int]:
    """Which ranks are meant, and how many may be. Raises _Mistake."""
    if wanted == ALL and alive:
        return sorted(alive)[:limit]
    if not isinstance(wanted, list) or not wanted or not all(isinstance(number, int) for number in wanted):
        raise _Mistake("it is not said which ranks are meant")
    numbers = sorted(set(wanted))
    if limit is not None and len(numbers) > limit:
        raise _Mistake(f"{limit} ranks at once are examined at most, not {len(numbers)}")
    unknown = [number for number in numbers if number not in alive]
    if unknown:
        there = f"there are {rank_list(list(alive))}" if alive else "no rank is alive"
        raise _Mistake(f"no rank {rank_list(unknown)}: {there}")
    return numbers
