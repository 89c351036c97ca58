"""Having ranks save before all are ended: who is asked, and whether what they wrote is what it is to be.

One saves for all; where what they train is sharded, one for each part, all at once (who_saves()).
Where the job is about to end and ranks train on, one saves after whichever step it has finished. Parts have to be of
one step: so each is saved after a step to which no rank can have come by the time that it hears of it (halt_step()).

Steps are compared on the boards, not by the last reports, which may be a second old. The rank is asked as a person's
requests are (supervisor/node/rank_examinations.py). Two never save the same at once: the next one is asked only where
the one before has said that its function was not called.

`NodeSaves` is a node's part, `InTimeSaves` that of who decides; what lies between the two on several nodes has a module
of its own (fleet_in_time_save.py).
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import LAST_STEP, SAVE
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.chooser import PartSaved
from guardrun.supervisor.collect.host.procfs import read_stat
from guardrun.supervisor.collect.ranks.boards import BoardReader, Part, part_of, step_of
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.node.rank_collection import RankContext
from guardrun.supervisor.node.rank_examinations import RankExaminations
from guardrun.supervisor.node.run_context import CheckpointContext

MOST_ASKED = 3
"""For the same."""
MAX_PARTS = 256
"""Of what is sharded: so many ranks are asked at once."""
POLL_S = 0.02
"""How often it is looked whether a rank has answered: ranks wait for it, and training."""
PACE_S = 1.0
"""How long is looked how fast ranks train."""
REACH_S = 3.0
"""A request is heard by then: hooks look once a second, and other nodes have to be told."""
SETTLE_S = 0.5
"""How often it is looked whether ranks that train on still save by themselves."""
LEAVE_S = 1.0
"""So long before nobody waits for it any more it is told at the latest."""
MAX_WHY_CHARS = 300
MAX_NUMBER = 2**53
"""What a rank tells is JSON, whose numbers have no end."""


class InTimeNode(RankContext, Protocol):
    """What is used of the node's supervisor."""

    @property
    def examinations(self) -> RankExaminations:
        """Asks the ranks of this node."""


_UNKNOWN = Part(-1, 0, is_ready=False)


class Steps(NamedTuple):
    """How many steps ranks have finished: the fewest and the most; why: nothing can be said."""

    low: int = 0
    high: int = 0
    why: str = ""
    parts: Mapping[int, Part] = {}
    """Of all ranks whose boards can be read, dead ones too."""
    gone: Collection[int] = ()
    """Who is taken for dead: no node with these can be reached."""
    is_saving: bool = False
    """A rank saves by itself, which is why."""


class Wanted(NamedTuple):
    """What a rank is to save."""

    step: int
    """The state after this one; LAST_STEP: after the last that it has finished."""
    part: tuple[int, int] | None = None
    """Which part (from 0), of how many; None: all."""
    is_halting: bool = False
    """It trains on until it has finished that step, and waits there."""
    token: str = ""
    """By which those find each other that save parts of one checkpoint."""


def halt_step(before: int, now: int, took_s: float) -> int:
    """After which step ranks that train on are to halt, so that none has come there when it hears of it.

    before, now: what the furthest had finished, took_s apart.
    """
    return now + 1 + math.ceil(max(0, now - before) / took_s * REACH_S)


def who_saves(alive: Sequence[int], may: Sequence[int], parts: Mapping[int, Part]) -> list[list[int]] | str:
    """For each part of what is trained who is to be asked, the first one first; or why nobody is.

    alive: who must say the same of how it is sharded. may: who can be asked, the first one first. Of these, ranks in
    whose step a backward pass has begun come first: where what is trained is sharded, many wait in the forward pass for
    shards of one that is gone, and those of other replicas for it in the backward pass. Then those whose number is no
    part's: by what they call their files it can be told that these are not numbered by ranks
    (supervisor/checkpoints/formats/plain.py).
    """
    said = [parts.get(number, _UNKNOWN) for number in alive]
    count = max((part.count for part in said), default=0)
    if count <= 1:
        return [list(may[:MOST_ASKED])]
    if any(part.count != count or not 0 <= part.index < count for part in said):
        return "ranks do not say the same of how what they train is sharded"
    if count > MAX_PARTS:
        return f"what they train is sharded into {count} parts, and {MAX_PARTS} ranks are asked at most"
    orders: list[list[int]] = [[] for _ in range(count)]
    for _, _, _, number in sorted((not parts[n].is_ready, n < count, at, n) for at, n in enumerate(may) if n in alive):
        orders[parts[number].index].append(number)
    for index, order in enumerate(orders):
        if not order:
            holders = sorted(number for number, part in parts.items() if (part.index, part.count) == (index, count))
            whose = f"{ranks_text(holders)} alone" if holders else "ranks that are gone"
            return f"no rank that is well holds part {index} of {count}, which was held by {whose}"
    return [order[:MOST_ASKED] for order in orders]


Answered = Callable[[dict[str, Any] | None, str], object]
"""Called with what a rank has told; None: with why it has told nothing, and may have begun all the same."""


class NodeSaves:
    """What a node does about it. Runs on the loop's thread."""

    def __init__(self, node: InTimeNode) -> None:
        self._node = node
        self._watched: list[_Watched] = []
        self._is_watching = False
        self._lock = threading.Lock()
        """Of these two."""

    def steps(self, attempt: int, ranks: Sequence[int]) -> Steps:
        """What the boards of these ranks show."""
        boards = self._node.sampler.boards
        words = {number: boards[number].read() for number in ranks if number in boards}
        known = {number: word for number, word in words.items() if word is not None}
        if len(known) < len(ranks) or self._node.ingest.attempt != attempt:
            return Steps(why="a rank has no board")
        if saving := [number for number, word in known.items() if word[Field.SAVE_SINCE_NS]]:
            return Steps(why=f"rank {saving[0]} is saving by itself", is_saving=True)
        steps = [step_of(word) for word in known.values()]
        return Steps(min(steps, default=0), max(steps, default=0))

    def parts(self) -> dict[int, Part]:
        """What the boards of all ranks here show, dead ones too."""
        read = {number: board.read() for number, board in self._node.sampler.boards.items()}
        return {number: part_of(words) for number, words in read.items() if words is not None}

    def ask(self, number: int, wanted: Wanted, left_s: float, done: Answered) -> None:
        """Have a rank save the state after a step; done: called once, after left_s and some more at the latest."""
        log.info("save_in_time", rank=number, step=wanted.step, part=wanted.part)
        until_ns = time.monotonic_ns() + int(left_s * 1e9)
        is_told: list[bool] = []

        def answered(answers: dict[int, dict[str, Any]], missing: dict[int, str]) -> None:
            is_told.append(True)
            done(answers.get(number), missing.get(number, "no answer"))

        arguments = {
            "step": wanted.step,
            "until_ns": until_ns,
            "part": wanted.part,
            "halt": wanted.is_halting,
            "token": wanted.token,
        }
        self._node.examinations.ask_here(number, SAVE, arguments, left_s, answered)
        if not is_told:
            self._watch(self._node.sampler.boards[number], until_ns, is_told)

    def _watch(self, board: BoardReader, until_ns: int, is_told: list[bool]) -> None:
        """Have it looked at as soon as the rank has answered: otherwise that is done once a second."""
        words = board.read()
        watched = _Watched(board, words[Field.EXAMINE_GIVEN] if words is not None else 0, until_ns, is_told)
        with self._lock:
            self._watched.append(watched)
            is_new, self._is_watching = not self._is_watching, True
        if is_new:  # one thread for all that are asked: the pool has few
            with suppress(RuntimeError):  # closing
                self._node.pool.submit(self._wait)

    def _wait(self) -> None:
        is_watching = True
        while is_watching:
            with self._lock:
                waiting = [one for one in self._watched if time.monotonic_ns() < one.until_ns and not one.is_told]
                self._watched = [one for one in waiting if not one.has_changed()]
                self._is_watching = is_watching = bool(self._watched)
                is_any = len(self._watched) < len(waiting)
            if is_any:
                self._node.post(self._node.examinations.sample)
            if is_watching:
                time.sleep(POLL_S)


class _Watched(NamedTuple):
    """A rank that has been asked."""

    board: BoardReader
    given: int
    """Field.EXAMINE_GIVEN before."""
    until_ns: int
    is_told: list[bool]
    """Anything: it is not waited for any more."""

    def has_changed(self) -> bool:
        """Whether it has answered, or never will."""
        words = self.board.read()
        return words is None or words[Field.EXAMINE_GIVEN] != self.given or read_stat(words[Field.PID]) is None


class Reach(Protocol):
    """How ranks are reached, on this node or on several."""

    def steps(self, action: ac.SaveInTime, done: Callable[[Steps], object]) -> None:
        """How far those that are alive are; done: called once."""

    def ask(self, action: ac.SaveInTime, number: int, wanted: Wanted, done: Answered) -> None:
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
        done(self._saves.steps(action.attempt, action.alive)._replace(parts=self._saves.parts()))

    def ask(self, action: ac.SaveInTime, number: int, wanted: Wanted, done: Answered) -> None:
        """As Reach has it."""
        self._saves.ask(number, wanted, action.until_s - self._node.clock.now(), done)

    def seek(self, action: ac.SaveInTime, number: int, told: dict[str, Any], done: Callable[[str], object]) -> None:
        """As Reach has it."""
        done("")


@dataclass
class _Round:
    """One save, by one rank or by several."""

    action: ac.SaveInTime
    wanted: Wanted
    """Of each, but for the part."""
    count: int
    """Parts."""
    told: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Per part: who has saved it, and what it has said."""
    is_over = False


class InTimeSaves:
    """Runs on the loop's thread."""

    def __init__(
        self,
        node: InTimeNode,
        context: CheckpointContext,
        keep: Callable[[], object],
        saved: Callable[[int, int, int, ev.Checkpoint], object] = lambda *_: None,
        reach: Reach | None = None,
    ) -> None:
        """keep: has what the chooser knows written down, for a supervisor after this one.

        saved: gets attempt, rank, steps of that attempt (-1: not known) and checkpoint of a save that is to be used, on
        the loop's thread. reach: None: all ranks are here.
        """
        self._node, self._context, self._keep, self._saved = node, context, keep, saved
        self._reach = reach or OneNode(node)

    def begin(self, action: ac.SaveInTime) -> None:
        """Ask the first ranks; SavedInTime is the answer. After until_s nobody waits for it."""
        self._reach.steps(action, lambda steps: self._compare(action, steps))

    def _look_again(self, action: ac.SaveInTime, steps: Steps) -> None:
        """How far they are some time later."""
        at_s = time.monotonic()

        def compare(later: Steps) -> None:
            if self._node.clock.now() < action.until_s:
                took_s = max(PACE_S, time.monotonic() - at_s)
                self._compare(action, later, halt_step(steps.high, later.high, took_s))

        self._later(PACE_S, lambda: self._reach.steps(action, compare))

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        def work() -> None:
            time.sleep(seconds)
            self._node.post(call)

        with suppress(RuntimeError):  # closing
            self._node.pool.submit(work)

    def _compare(self, action: ac.SaveInTime, steps: Steps, halt: int = 0) -> None:
        """halt: after which step ranks that train on are to save parts; 0: not known yet."""
        why = steps.why
        if not why and steps.low != steps.high and not action.is_running:
            why = f"ranks have finished different numbers of steps: {steps.low} and {steps.high}"
        elif not why and not steps.low:
            why = "no step is finished"
        alive, may = ([one for one in ranks if one not in steps.gone] for ranks in (action.alive, action.global_ranks))
        orders = why or who_saves(alive, may, steps.parts)
        if isinstance(orders, str):
            self._end(_Round(action, Wanted(LAST_STEP), 0), why=orders)
            return
        is_halting = action.is_running and len(orders) > 1
        if is_halting and not halt:
            self._look_again(action, steps)
            return
        step = halt or (LAST_STEP if action.is_running else steps.low)
        one = _Round(action, Wanted(step, is_halting=is_halting, token=secrets.token_hex(8)), len(orders))
        for part, ranks in enumerate(orders):
            self._ask(one, part, ranks, "")

    def _ask(self, one: _Round, part: int, ranks: list[int], why: str) -> None:
        """Ask the first of them; why: what spoke against the one before."""
        if one.is_over:
            return
        if not ranks or self._node.clock.now() >= one.action.until_s:
            self._end(one, why=why)
            return
        number, others, action = ranks[0], ranks[1:], one.action

        def done(told: dict[str, Any] | None, missing: str) -> None:
            if one.is_over:
                return
            if told is None:
                # One that hears of it late may still call its function: nobody else may, then.
                self._end(one, number, why=f"rank {number}: {missing}"[:MAX_WHY_CHARS], has_begun=True)
            elif "why" in told:
                not_it = f"rank {number}: {str(told['why'])[:MAX_WHY_CHARS]}"
                if one.wanted.is_halting:  # another one would come there too late
                    self._end(one, number, why=not_it)
                elif action.is_running and others:  # it may have been seconds: by now one may save by itself
                    self._reach.steps(
                        action, lambda steps: self._ask(one, part, [] if steps.why else others, steps.why or not_it)
                    )
                else:
                    self._ask(one, part, others, not_it)
            elif "path" in told:
                self._reach.seek(one.action, number, told, lambda why: self._sought(one, part, number, told, why))
            else:
                why = str(told.get("failed", "its answer is none"))[:MAX_WHY_CHARS]
                self._end(one, number, why=f"rank {number}: {why}", has_begun=True)

        self._reach.ask(action, number, one.wanted._replace(part=(part, one.count) if one.count > 1 else None), done)

    def _sought(self, one: _Round, part: int, number: int, told: dict[str, Any], why: str) -> None:
        if one.is_over:
            return
        if why:
            self._end(one, number, why=f"rank {number} saved {told['path']}: {why}"[:MAX_WHY_CHARS], has_begun=True)
            return
        one.told[part] = (number, told)
        if len(one.told) == one.count and self._node.clock.now() < one.action.until_s:
            self._judge(one)  # else nobody waits for it any more, and it is nothing to resume from

    def _judge(self, one: _Round) -> None:
        """All say that they have saved."""
        action, chooser = one.action, self._context.chooser
        said = sorted(one.told.values(), key=lambda pair: pair[0])
        ranks = [number for number, _ in said]
        is_said = one.wanted.is_halting or one.wanted.step == LAST_STEP
        steps = {_step(told.get("step")) for _, told in said} if is_said else {one.wanted.step}
        step = max(steps)
        whose = f"{ranks_text(ranks)} saved {said[0][1]['path']}{' and others' if one.count > 1 else ''}"

        if not step or len(steps) > 1:
            why = f"they are of steps {min(steps)} to {step}" if step else "it does not say after which step"
            self._end(one, ranks[0], why=f"{whose}: {why}", has_begun=True)
            return

        def event(checkpoint: ev.Checkpoint | None, why: str, *, is_unchecked: bool = False) -> ev.SavedInTime:
            return ev.SavedInTime(
                request=action.request,
                attempt=action.attempt,
                global_rank=ranks[0],
                global_ranks=ranks if one.count > 1 else [],
                checkpoint=checkpoint,
                took_s=max(_number(told.get("took_s")) for _, told in said),
                why=why[:MAX_WHY_CHARS],
                has_begun=True,
                is_unchecked=is_unchecked,
            )

        def work() -> ev.Event | None:
            ended = judge()
            if ended.checkpoint is None or not action.is_running:
                return ended
            self._node.post(lambda: self._settle(action, ended))
            return None

        def judge() -> ev.SavedInTime:
            saved = [_saved_part(number, told) for number, told in said]
            if one.count > 1:
                found = chooser.saw_parts_in_time(saved, step, action.attempt)
            else:
                says = said[0][1].get("says")
                by_trainer = says if isinstance(says, int) else None
                path, _, wall_s, inode = saved[0]
                found = chooser.saw_in_time(path, step, wall_s, inode, action.attempt, says=by_trainer)
            self._keep()
            if isinstance(found, str):
                return event(None, f"{whose}: {found}")
            parts = zip(said, saved, strict=True)
            writer, told = next((pair for pair, part in parts if part.path == found.checkpoint.path), said[0])
            own_steps = _step(told.get("own_steps")) or -1
            self._node.post(lambda: self._saved(action.attempt, writer, own_steps, found.checkpoint))
            return event(found.checkpoint, "", is_unchecked=found.is_unchecked)

        chooser.hurry()
        instead = lambda error: event(None, f"{whose}, which could not be looked at: {error}")  # noqa: E731
        self._node.in_background(work, instead, self._context.checkpoint_pool)

    def _settle(self, action: ac.SaveInTime, saved: ev.SavedInTime) -> None:
        """Tell it once no rank saves by itself: the ranks are stopped then, and training has gone on meanwhile."""

        def look(steps: Steps) -> None:
            if steps.is_saving and self._node.clock.now() < action.until_s - LEAVE_S:
                self._later(SETTLE_S, lambda: self._settle(action, saved))
            else:
                self._node.feed(saved)

        self._reach.steps(action, look)

    def _end(self, one: _Round, number: int = -1, *, why: str, has_begun: bool = False) -> None:
        one.is_over = True
        action = one.action
        ended = ev.SavedInTime(
            request=action.request,
            attempt=action.attempt,
            global_rank=number,
            why=why,
            has_begun=has_begun or one.count > 1,  # others may have been called
        )
        self._node.post(lambda: self._node.feed(ended))


def _saved_part(number: int, told: dict[str, Any]) -> PartSaved:
    inode = told.get("inode")
    return PartSaved(str(told["path"]), number, _number(told.get("wall_s")), inode if isinstance(inode, int) else 0)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and -MAX_NUMBER < value < MAX_NUMBER else 0.0


def _step(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < MAX_NUMBER else 0
