"""What a person wants ranks to find out about themselves (hooks/examine/), on this node and the others: one answer."""

from __future__ import annotations

import secrets
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from guardrun.hooks.wire.examinations import EVAL, MAX_SECONDS, PROFILE, RATE, STOP
from guardrun.supervisor.daemon.module_traces import MODULES, answer_bytes, keep_traces
from guardrun.supervisor.daemon.profiles import ProfileRequest, keep_profiles
from guardrun.supervisor.daemon.store_room import UNSEEN, count_room
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.state.hand_changes import NOT_RUN
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
LEAD_S = 6.0
"""Until then all ranks have been told: their nodes, and their hooks' next beat."""
LATEST_S = 30.0
"""Beyond the steps until then: how long that one may take to come."""
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


class RateChange:
    """A change of rates, for the journal."""

    def __init__(self, attempt: int, who: str, ranks: list[int]) -> None:
        self._attempt, self._who, self._ranks = attempt, who, ranks
        self._id = secrets.token_hex(4)

    def asked(self, arguments: dict[str, Any], seconds: float) -> ev.HandChangeAsked:
        """Before anybody is."""
        mode, value = str(arguments.get("mode"))[:10], arguments.get("value")
        text = f"lr {value if isinstance(value, int | float) else '?'}"
        return ev.HandChangeAsked(
            attempt=self._attempt,
            id=self._id,
            global_ranks=self._ranks,
            verb=mode,
            text=text,
            seconds=seconds,
            who=self._who,
        )

    def ended(self, told: dict[int, dict[str, Any]], silent: dict[int, str]) -> ev.HandChangeEnded:
        """Once all have answered, or can't. All that have changed anything have changed the same."""
        first = next((one for _, one in sorted(told.items())), {})
        step, changes = first.get("step"), first.get("changes")
        return ev.HandChangeEnded(
            attempt=self._attempt,
            id=self._id,
            outcome="done" if told else NOT_RUN,
            step=step if isinstance(step, int) else None,
            changes=[str(one)[:200] for one in changes[:8]] if isinstance(changes, list) else [],
            why="" if told else next(iter(silent.values()), "")[:500],
        )


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
    left_out: int
    """Ranks that were meant, too, and are too many."""
    change: RateChange | None
    """Of rates, which is told once it has been made."""


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
        what, arguments, seconds = asked.get("what"), asked.get("arguments", {}), asked.get("seconds", 0.0)
        wanted = _numbers(asked.get("ranks"), alive, None if what in (STOP, RATE) else MAX_RANKS)
        if not isinstance(what, str) or not isinstance(arguments, dict) or not isinstance(seconds, int | float):
            raise _Mistake("it is not said what is to be examined")
        if not 0 <= seconds <= MAX_SECONDS:
            raise _Mistake(f"ranks are examined for {MAX_SECONDS:.0f} seconds at most")
        state, node = self._context.engine.state, self._node
        if state.phase is not Phase.RUNNING or state.attempt is None:
            raise _Mistake(f"no attempt runs: it is {state.phase.value}")
        who = str(asked.get("who", "somebody"))[:100]
        attempt = state.attempt.number
        if what == EVAL:
            raise _Mistake("code is run only for who asks on the rank's own node: guardctl eval there")
        change = RateChange(attempt, who, wanted) if what == RATE else None
        if change is not None:
            if len(wanted) != state.world_size:
                raise _Mistake(
                    f"{len(wanted)} of {state.world_size} ranks: rates are changed on all of them, or on none"
                )
            most = self._most_agreeing()
            if len(wanted) > most:
                raise _Mistake(
                    f"{len(wanted)} ranks would have to agree: the process that has torch's store may have room for "
                    f"{most} more connections (ulimit -n there)"
                )
            arguments, seconds = self._plan({**arguments, "most": most}, seconds)
            node.feed(change.asked(arguments, seconds))
        elif what != STOP:
            node.feed(
                ev.ExaminationAsked(
                    attempt=attempt, global_ranks=wanted, what=what[:40], seconds=float(seconds), who=who
                )
            )
        if what == MODULES:
            arguments = {**arguments, "bytes": answer_bytes(len(wanted))}
        left_out = len(alive) - len(wanted) if asked.get("ranks") == ALL else 0
        asking = _Asking(peer, what, wanted, arguments, float(seconds), attempt, alive, left_out, change)
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
                if asking.change is not None:
                    node.feed(asking.change.ended(told, silent))
                if asking.what in (MODULES, PROFILE) and told:
                    self._keep(asking, told, silent, nodes)
                else:
                    node.send_to(asking.peer, _answer(told, silent, nodes, asking.left_out))

        terms = asking.what, asking.arguments, asking.seconds
        if self._context.fleet is None:
            join({}, {})
        else:
            elsewhere = [alive[number] for number in wanted if number not in here]
            self._context.fleet.examinations.ask(elsewhere, *terms, join)
        node.examinations.ask(here, *terms, join)

    def _most_agreeing(self) -> int:
        first = self._node.ingest.ranks.get(0)
        return UNSEEN if first is None else count_room([self._node.run_file.launcher_pid, first.pid])

    def _plan(self, arguments: dict[str, Any], seconds: float) -> tuple[dict[str, Any], float]:
        """At which step rates are changed: one that no rank comes to before all have been told."""
        attempt = self._context.engine.state.attempt
        assert attempt is not None
        times = [row.step_time_s for row in self._node.ingest.rows() if row.step_time_s]
        step_s = max(times, default=1.0)
        lead = max(2, ceil(LEAD_S / step_s) + 1)
        furthest = max((known.step for known in attempt.ranks.values()), default=attempt.step)
        seconds = min(MAX_SECONDS, seconds or LATEST_S + (lead + 2) * step_s)
        return {**arguments, "at_step": furthest + lead, "id": secrets.token_hex(4), "seconds": seconds}, seconds

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
            answer = _answer(kept, {**silent, **missing}, nodes, asking.left_out, number=number)
            node.post(lambda: node.send_to(asking.peer, answer))

        with suppress(RuntimeError):  # closing
            node.pool.submit(work)

    def _alive(self) -> dict[int, ev.Rank]:
        """This node's ranks, and the other nodes'."""
        fleet = self._context.fleet
        others = fleet.other_ranks() if fleet is not None else []
        return {**self._node.ingest.ranks, **{rank.global_rank: rank for rank in others}}


def _answer(
    told: dict[int, Any], missing: dict[int, str], nodes: dict[int, str], left_out: int, **more: object
) -> Answer:
    if left_out:
        more["left_out"] = left_out
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
