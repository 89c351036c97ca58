"""Having one rank save before all are ended: who is asked, and whether what it wrote is what it is to be.

Steps are compared on the boards, not by the last reports, which may be a second old. The rank is asked as a person's
requests are (supervisor/node/rank_examinations.py). Two never save at once: the next one is asked only where the one
before has said that its function was not called.

`NodeSaves` is a node's part, `InTimeSaves` that of who decides; what lies between the two on several nodes has a module
of its own (fleet_in_time_save.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import SAVE
from guardrun.supervisor.base.log import log
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.boards import BoardReader, step_of
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.run_context import CheckpointContext

MOST_ASKED = 3
POLL_S = 0.02
"""How often it is looked whether a rank has answered: ranks wait for it, and training."""
MAX_WHY_CHARS = 300


class InTimeNode(RankContext, Protocol):
    """What is used of the node's supervisor."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""


class Steps(NamedTuple):
    """How many steps ranks have finished: the fewest and the most; why: nothing can be said."""

    low: int = 0
    high: int = 0
    why: str = ""


Answered = Callable[[dict[str, Any] | None, str], object]
"""Called with what a rank has told; None: with why it has told nothing, and may have begun all the same."""


class NodeSaves:
    """What a node does about it. Runs on the loop's thread."""

    def __init__(self, node: InTimeNode) -> None:
        self._node = node

    def steps(self, attempt: int, ranks: Sequence[int]) -> Steps:
        """What the boards of these ranks show."""
        boards = self._node.sampler.boards
        words = {number: boards[number].read() for number in ranks if number in boards}
        known = {number: word for number, word in words.items() if word is not None}
        if len(known) < len(ranks) or self._node.ingest.attempt != attempt:
            return Steps(why="a rank has no board")
        if saving := [number for number, word in known.items() if word[Field.SAVE_SINCE_NS]]:
            return Steps(why=f"rank {saving[0]} is saving by itself")
        steps = [step_of(word) for word in known.values()]
        return Steps(min(steps, default=0), max(steps, default=0))

    def ask(self, number: int, step: int, left_s: float, done: Answered) -> None:
        """Have a rank save the state after this step; done: called once, after left_s and some more at the latest."""
        log.info("save_in_time", rank=number, step=step)
        until_ns = time.monotonic_ns() + int(left_s * 1e9)
        is_told: list[bool] = []

        def answered(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            is_told.append(True)
            done(answers.get(number), missing.get(number, "no answer"))

        arguments = {"step": step, "until_ns": until_ns}
        self._node.examinations.ask_here(number, SAVE, arguments, left_s, answered)
        if not is_told:
            self._watch(self._node.sampler.boards[number], until_ns, is_told)

    def _watch(self, board: BoardReader, until_ns: int, is_told: list[bool]) -> None:
        """Have it looked at as soon as the rank has answered: otherwise that is done once a second."""
        words = board.read()
        before = words[Field.EXAMINE_GIVEN] if words is not None else 0

        def wait() -> None:
            while time.monotonic_ns() < until_ns and not is_told:
                words = board.read()
                if words is None or words[Field.EXAMINE_GIVEN] != before or read_stat(words[Field.PID]) is None:
                    self._node.post(self._node.examinations.sample)
                    return
                time.sleep(POLL_S)

        with suppress(RuntimeError):  # closing
            self._node.pool.submit(wait)


class Reach(Protocol):
    """How ranks are reached, on this node or on several."""

    def steps(self, action: ac.SaveInTime, done: Callable[[Steps], object]) -> None:
        """How far those that are alive are; done: called once."""

    def ask(self, action: ac.SaveInTime, number: int, step: int, done: Answered) -> None:
        """Have one save; done: called once."""

    def seek(self, action: ac.SaveInTime, number: int, told: dict[str, Any], done: Callable[[str], object]) -> None:
        """Whether what it has saved can be seen wherever it may be resumed from; done: called with why not, or empty.

        told: with a path.
        """


class OneNode:
    """All ranks are here."""

    def __init__(self, node: InTimeNode) -> None:
        self._node, self._saves = node, NodeSaves(node)

    def steps(self, action: ac.SaveInTime, done: Callable[[Steps], object]) -> None:
        """As Reach has it."""
        done(self._saves.steps(action.attempt, action.alive))

    def ask(self, action: ac.SaveInTime, number: int, step: int, done: Answered) -> None:
        """As Reach has it."""
        self._saves.ask(number, step, action.until_s - self._node.clock.now(), done)

    def seek(self, action: ac.SaveInTime, number: int, told: dict[str, Any], done: Callable[[str], object]) -> None:
        """As Reach has it."""
        done("")


class InTimeSaves:
    """Runs on the loop's thread."""

    def __init__(
        self,
        node: InTimeNode,
        context: CheckpointContext,
        keep: Callable[[], object],
        saved: Callable[[int, int, ev.Checkpoint], object] = lambda *_: None,
        reach: Reach | None = None,
    ) -> None:
        """keep: has what the chooser knows written down, for a supervisor after this one.

        saved: gets attempt, rank and checkpoint of a save that is to be used, on the loop's thread. reach: None: all
        ranks are here.
        """
        self._node, self._context, self._keep, self._saved = node, context, keep, saved
        self._reach = reach or OneNode(node)

    def begin(self, action: ac.SaveInTime) -> None:
        """Ask the first rank; SavedInTime is the answer. After until_s nobody waits for it."""
        self._reach.steps(action, lambda steps: self._compare(action, steps))

    def _compare(self, action: ac.SaveInTime, steps: Steps) -> None:
        why = steps.why
        if not why and steps.low != steps.high:
            why = f"ranks have finished different numbers of steps: {steps.low} and {steps.high}"
        elif not why and not steps.low:
            why = "no step is finished"
        if why:
            self._end(action, why=why)
        else:
            self._ask(action, steps.low, action.global_ranks[:MOST_ASKED], "")

    def _ask(self, action: ac.SaveInTime, step: int, ranks: list[int], why: str) -> None:
        """Ask the first of them; why: what spoke against the one before."""
        if not ranks or self._node.clock.now() >= action.until_s:
            self._end(action, why=why)
            return
        number, others = ranks[0], ranks[1:]

        def done(told: dict[str, Any] | None, missing: str) -> None:
            if told is None:
                # One that hears of it late may still call its function: nobody else may, then.
                self._end(action, number, why=f"rank {number}: {missing}"[:MAX_WHY_CHARS], has_begun=True)
            elif "why" in told:
                self._ask(action, step, others, f"rank {number}: {str(told['why'])[:MAX_WHY_CHARS]}")
            elif "path" in told:
                self._reach.seek(action, number, told, lambda why: self._sought(action, number, step, told, why))
            else:
                why = str(told.get("failed", "its answer is none"))[:MAX_WHY_CHARS]
                self._end(action, number, why=f"rank {number}: {why}", has_begun=True)

        self._reach.ask(action, number, step, done)

    def _sought(self, action: ac.SaveInTime, number: int, step: int, told: dict[str, Any], why: str) -> None:
        if why:
            self._end(action, number, why=f"rank {number} saved {told['path']}: {why}"[:MAX_WHY_CHARS], has_begun=True)
        else:
            self._judge(action, number, step, told)

    def _judge(self, action: ac.SaveInTime, number: int, step: int, told: dict[str, Any]) -> None:
        """It says that it has saved."""
        path, took_s = str(told["path"]), _number(told.get("took_s"))
        if self._node.clock.now() >= action.until_s:
            return  # nobody waits for it any more, and it is nothing to resume from
        inode, says = told.get("inode"), told.get("says")
        chooser = self._context.chooser

        def event(checkpoint: ev.Checkpoint | None, why: str, *, is_unchecked: bool = False) -> ev.Event:
            return ev.SavedInTime(
                request=action.request,
                attempt=action.attempt,
                global_rank=number,
                checkpoint=checkpoint,
                took_s=took_s,
                why=why[:MAX_WHY_CHARS],
                has_begun=True,
                is_unchecked=is_unchecked,
            )

        def work() -> ev.Event:
            inode_of = inode if isinstance(inode, int) else 0
            wall_s, by_trainer = _number(told.get("wall_s")), says if isinstance(says, int) else None
            found = chooser.saw_in_time(path, step, wall_s, inode_of, action.attempt, says=by_trainer)
            self._keep()
            if isinstance(found, str):
                return event(None, f"rank {number} saved {path}: {found}")
            self._node.post(lambda: self._saved(action.attempt, number, found.checkpoint))
            return event(found.checkpoint, "", is_unchecked=found.is_unchecked)

        chooser.hurry()
        instead = lambda error: event(None, f"{path} could not be looked at: {error}")  # noqa: E731
        self._node.in_background(work, instead, self._context.checkpoint_pool)

    def _end(self, action: ac.SaveInTime, number: int = -1, *, why: str, has_begun: bool = False) -> None:
        ended = ev.SavedInTime(
            request=action.request, attempt=action.attempt, global_rank=number, why=why, has_begun=has_begun
        )
        self._node.post(lambda: self._node.feed(ended))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
