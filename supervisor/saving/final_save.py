"""Having the ranks save before their job ends, and seeing that they have.

What counts is a whole checkpoint, as the chooser sees it, that is newer than the request: another one than was newest
before. (Times of files are the file server's: they are compared with each other, and with this node's clock only where
it is not known what was there before: a supervisor was started anew, or the ranks were given the signal themselves and
may have saved before anybody looked.) It is told once no rank is saving any more, a moment later: what a script does
with a checkpoint after writing it, a pointer or a link, is not to be cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.chooser import Choice
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.in_time_save import is_awaited
from guardrun.supervisor.engine.state.state import Attempt
from guardrun.supervisor.node.run_context import CheckpointContext, EngineContext, LoopContext
from guardrun.supervisor.saving.save_agreement import SaveAgreement, armed_call, has_answered, read_counts

if TYPE_CHECKING:  # not loaded in a job of one node
    from guardrun.supervisor.saving.fleet_save_agreement import FleetSaveAgreement

FRESH_S = 2.0
"""A request this old comes from the supervisor before: what was newest at its time is no longer known."""
BASELINE_S = 1.0
"""The ranks are asked after so long at the latest, known or not."""
SEEK_S = 2.0
"""Saves that the hooks do not see are looked for so often."""
SETTLE_S = 1.0
GRAIN_S = 0.01
"""A file's time is the kernel's last tick, which may lie so long before it was written."""
ASKS_BY = 2
"""A rank that has come so many steps further than the first that was heard of, and has not called should_checkpoint(),
is taken for one that does not."""
HAND_S = 3.0
"""Other nodes may take so long to say how far their ranks are."""


class _Wanted(msgspec.Struct, frozen=True):
    """What a checkpoint must be to answer the request."""

    request: int
    since_wall_s: float
    before: ev.Checkpoint | None = None
    """The newest one when the request was made."""
    is_before_known: bool = False
    is_quiet: bool = False
    """The ranks were given the signal, before the look for the newest one."""
    attempt: int = -1
    until_s: float = 0.0
    """As AskCheckpoint has them."""
    spoiled: Sequence[ac.Spoiled] = ()
    """No answer, in time.time()'s seconds."""

    def is_over(self, attempt: int, now_s: float) -> bool:
        """Whether nobody waits for its answer any more. attempt: the newest; now_s: in the engine's seconds."""
        return 0 < self.until_s <= now_s or 0 <= self.attempt != attempt

    def is_met_by(self, found: ev.Checkpoint | None) -> bool:
        if found is None:
            return False
        is_since = found.written_wall_s >= self.since_wall_s - GRAIN_S
        if not self.is_before_known or (self.is_quiet and is_since):
            return is_since
        if self.before is None:
            return True
        is_same = (found.path, found.written_wall_s) == (self.before.path, self.before.written_wall_s)
        return not is_same and found.written_wall_s >= self.before.written_wall_s


class SavingNode(LoopContext, Protocol):
    """What a final save uses of the node's supervisor."""

    @property
    def sampler(self) -> Sampler:
        """Has the boards of this node's ranks."""


class SavingContext(EngineContext, CheckpointContext, Protocol):
    """What it uses of the daemon."""

    @property
    def is_running(self) -> bool:
        """Ranks are alive, and are to be."""

    @property
    def fleet_agreement(self) -> FleetSaveAgreement | None:
        """Agrees with other nodes on the call at which all save; None in a job of one node."""


class FinalSave:
    """Runs on the loop's thread; the chooser is asked on its own."""

    def __init__(self, node: SavingNode, context: SavingContext) -> None:
        self._node, self._context = node, context
        self.asking = SaveAgreement()
        self._wanted: _Wanted | None = None
        """None: nothing is asked for."""
        self._ask_by_s = 0.0
        self._at_call = 0
        self._is_answered = False
        self._is_unasked = False
        """It was told that a rank never asks."""
        self._found: tuple[float, ev.Checkpoint] | None = None
        self._is_seeking = False
        self._seek_s = 0.0
        self._hand: tuple[float, Callable[[int | None], object]] | None = None
        """Until when a person's request is tried, and who is told."""

    # Orders ----------------------------------------------------------------------------------------------------

    def ask(self, action: ac.AskCheckpoint, spoiled: Sequence[ac.Spoiled]) -> None:
        """Begin: what is newest now, then the ranks. spoiled: in time.time()'s seconds."""
        context = self._context
        wanted = _Wanted(
            action.request,
            self._node.clock.wall_s(action.since_s),
            is_quiet=action.is_quiet,
            attempt=action.attempt,
            until_s=action.until_s,
            spoiled=spoiled,
        )
        self._wanted, self._at_call, self._is_answered, self._is_unasked = wanted, 0, False, False
        self._found, self._ask_by_s = None, time.monotonic() + BASELINE_S
        if self._node.clock.now() - action.since_s > FRESH_S:
            self._ask_by_s = 0.0
            self.poll()
            return

        def work() -> None:
            before = context.chooser.choose(spoiled=spoiled).checkpoint
            known = msgspec.structs.replace(wanted, before=before, is_before_known=True)
            self._node.post(lambda: self._know(wanted, known))

        self._node.in_background(work, lambda error: None, context.checkpoint_pool)

    def seek(self, action: ac.SeekCheckpoint, spoiled: Sequence[ac.Spoiled]) -> None:
        """The last look, now that nothing is alive. spoiled: in time.time()'s seconds."""
        context, wanted = self._context, self._wanted
        self._wanted = None
        if wanted is None or wanted.request != action.request:
            wanted = _Wanted(action.request, self._node.clock.wall_s(context.engine.state.notice.saves_from_s))

        def work() -> ev.Event:
            found = context.chooser.choose(spoiled=spoiled).checkpoint
            return ev.CheckpointCompleted(request=action.request, checkpoint=found if wanted.is_met_by(found) else None)

        nothing = ev.CheckpointCompleted(request=action.request)
        self._node.in_background(work, lambda error: nothing, context.checkpoint_pool)

    # What happens ------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Once a second, and when something may have changed."""
        context = self._context
        if context.is_running:
            self.asking.sample(self._node.sampler.boards)
        self._drop_old()
        self.try_asking()
        wanted = self._wanted
        if wanted is None:
            return
        now_s = time.monotonic()
        self.note_answers()
        if self._found is not None:
            self._secure(wanted, now_s)
        elif not self._is_seeking and now_s >= self._seek_s:
            self._begin_seek(wanted)

    def try_asking(self) -> None:
        """Ask the ranks, as soon as that can be done."""
        wanted, state = self._wanted, self._context.engine.state
        if self._hand is not None:
            self._try_by_hand(*self._hand)
        if wanted is None or self._at_call or wanted.is_quiet or not self._context.is_running:
            return
        if is_awaited(state):
            return  # a rank saves by another function just now: two would write at once
        if not wanted.is_before_known and time.monotonic() < self._ask_by_s:
            return
        at_call = self._fix_call(wanted.request)
        if at_call is not None:
            self._at_call = at_call
            log.info("checkpoint_asked", request=wanted.request, at_call=at_call)
            self._node.feed(ev.CheckpointAsked(request=wanted.request, at_call=at_call))
        elif not self._is_unasked and state.attempt is not None and self._is_never_asked(state.attempt):
            self._is_unasked = True
            self._node.feed(ev.CheckpointAsked(request=wanted.request, at_call=0))

    def _is_never_asked(self, attempt: Attempt) -> bool:
        """Whether some rank trains without should_checkpoint(), where there is another way to have it save."""
        first = attempt.first_step
        if not attempt.may_save_in_time or first is None:
            return False
        if any(rank.step - first < ASKS_BY for rank in attempt.ranks.values()):
            return False
        fleet = self._context.fleet_agreement
        return fleet.has_silent_rank if fleet is not None else not all(read_counts(self._node.sampler.boards).values())

    def by_hand(self, reply: Callable[[int | None], object]) -> None:
        """A person asks the ranks to save; reply: called with the call that says yes, or None where they don't ask."""
        self._hand = (time.monotonic() + HAND_S, reply)
        self.try_asking()

    def by_interval(self) -> None:
        """Ask the ranks to save, unless somebody does already, or they have still to come to the last such call."""
        if self._hand is None and self._wanted is None and not armed_call(self._node.sampler.boards):
            self.by_hand(lambda at_call: log.info("interval_save_asked", at_call=at_call))

    def _try_by_hand(self, by_s: float, reply: Callable[[int | None], object]) -> None:
        context, at_call = self._context, self._fix_call(0)
        if at_call is not None or context.fleet_agreement is None or time.monotonic() >= by_s:
            self._hand = None
            if at_call is None and context.fleet_agreement is not None and self._wanted is None:
                context.fleet_agreement.withdraw()
            reply(at_call)

    def note_answers(self) -> None:
        """Tell once that a rank has said yes; before it is told that it has ended."""
        wanted = self._wanted
        if wanted is None or not self._at_call or self._is_answered:
            return
        if has_answered(self._node.sampler.boards, self._at_call):
            self._is_answered = True
            self._node.feed(ev.CheckpointAnswered(request=wanted.request))

    def seen(self, choice: Choice, request: int = 0) -> None:
        """The chooser has just chosen, on its own thread. request: for which that was; 0: for none."""
        if self._wanted is not None and choice.checkpoint is not None:
            found = choice.checkpoint
            self._node.post(lambda: self._find(found, request))

    # How -----------------------------------------------------------------------------------------------------------

    def _drop_old(self) -> None:
        """A request that held for a time, or for an attempt, which is over: nobody asks for its answer any more."""
        wanted, attempt = self._wanted, self._context.engine.state.attempt
        if wanted is None:
            return
        if wanted.is_over(attempt.number if attempt is not None else -1, self._node.clock.now()):
            self._wanted = None
            if self._context.fleet_agreement is not None and not self._at_call:
                self._context.fleet_agreement.withdraw()

    def _know(self, wanted: _Wanted, known: _Wanted) -> None:
        if self._wanted is wanted and not self._at_call:
            self._wanted = known
            self.poll()

    def _fix_call(self, request: int) -> int | None:
        """One call for all ranks, of all nodes; None: not all of them ask, or it is not known yet."""
        context, boards = self._context, self._node.sampler.boards
        if context.fleet_agreement is None:
            return self.asking.ask(boards)
        attempt = context.engine.state.attempt
        if attempt is None:
            return None
        nodes = sorted({rank.rank.node for rank in attempt.ranks.values()})
        return context.fleet_agreement.ask(nodes, request, attempt.number, self._node.clock.now())

    def _begin_seek(self, wanted: _Wanted) -> None:
        context = self._context
        self._is_seeking, self._seek_s = True, time.monotonic() + SEEK_S

        def work() -> None:
            try:
                self.seen(context.chooser.choose(spoiled=wanted.spoiled), wanted.request)
            finally:
                self._node.post(self._sought)

        self._node.in_background(work, lambda error: None, context.checkpoint_pool)

    def _sought(self) -> None:
        self._is_seeking = False

    def _find(self, found: ev.Checkpoint, request: int) -> None:
        if self._wanted is not None and request in (0, self._wanted.request) and self._wanted.is_met_by(found):
            first_s = self._found[0] if self._found is not None else time.monotonic()
            self._found = (first_s, found)

    def _secure(self, wanted: _Wanted, now_s: float) -> None:
        assert self._found is not None
        found_s, found = self._found
        if now_s - found_s < SETTLE_S or self._is_anybody_saving():
            return
        self._wanted = None
        self._node.feed(ev.CheckpointCompleted(request=wanted.request, checkpoint=found))

    def _is_anybody_saving(self) -> bool:
        boards = self._node.sampler.boards.values()
        return any(words[Field.SAVE_SINCE_NS] for reader in boards if (words := reader.read()) is not None)
