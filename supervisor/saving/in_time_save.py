"""Having one rank save before all are ended: who is asked, and whether what it wrote is what it is to be.

Steps are compared on the boards, not by the last reports, which may be a second old. The rank is asked as a person's
requests are (supervisor/node/rank_examinations.py). Two never save at once: the next one is asked only where the one
before has said that its function was not called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

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


class InTimeSaves:
    """Runs on the loop's thread."""

    def __init__(
        self,
        node: InTimeNode,
        context: CheckpointContext,
        keep: Callable[[], object],
        saved: Callable[[int, int, ev.Checkpoint], object] = lambda *_: None,
    ) -> None:
        """keep: has what the chooser knows written down, for a supervisor after this one.

        saved: gets attempt, rank and checkpoint of a save that is to be used, on the loop's thread.
        """
        self._node, self._context, self._keep, self._saved = node, context, keep, saved

    def begin(self, action: ac.SaveInTime) -> None:
        """Ask the first rank; SavedInTime is the answer. After until_s nobody waits for it."""
        step, why = self._agreed(action)
        if why:
            self._end(action, why=why)
        else:
            self._ask(action, step, action.global_ranks[:MOST_ASKED], "")

    def _agreed(self, action: ac.SaveInTime) -> tuple[int, str]:
        """The step that all who are alive have finished last; else why there is none."""
        boards = self._node.sampler.boards
        words = {number: boards[number].read() for number in action.alive if number in boards}
        known = {number: word for number, word in words.items() if word is not None}
        if len(known) < len(action.alive) or self._node.ingest.attempt != action.attempt:
            return 0, "a rank has no board"
        if saving := [number for number, word in known.items() if word[Field.SAVE_SINCE_NS]]:
            return 0, f"rank {saving[0]} is saving by itself"
        steps = {number: step_of(word) for number, word in known.items()}
        if len(set(steps.values())) > 1:
            low, high = min(steps.values()), max(steps.values())
            return 0, f"ranks have finished different numbers of steps: {low} and {high}"
        step = next(iter(steps.values()), 0)
        return step, "" if step else "no step is finished"

    def _ask(self, action: ac.SaveInTime, step: int, ranks: list[int], why: str) -> None:
        """Ask the first of them; why: what spoke against the one before."""
        left_s = action.until_s - self._node.clock.now()
        if not ranks or left_s <= 0:
            self._end(action, why=why)
            return
        number, others = ranks[0], ranks[1:]
        log.info("save_in_time", request=action.request, rank=number, step=step)
        until_ns = time.monotonic_ns() + int(left_s * 1e9)
        is_told: list[bool] = []

        def done(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            is_told.append(True)
            told = answers.get(number)
            if told is None:
                # One that hears of it late may still call its function: nobody else may, then.
                self._end(action, number, why=f"rank {number}: {missing.get(number, 'no answer')}", has_begun=True)
            elif "why" in told:
                self._ask(action, step, others, f"rank {number}: {str(told['why'])[:MAX_WHY_CHARS]}")
            elif "path" in told:
                self._judge(action, number, step, told)
            else:
                why = str(told.get("failed", "its answer is none"))[:MAX_WHY_CHARS]
                self._end(action, number, why=f"rank {number}: {why}", has_begun=True)

        arguments = {"step": step, "until_ns": until_ns}
        self._node.examinations.ask_here(number, SAVE, arguments, left_s, done)
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
