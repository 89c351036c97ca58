"""What a diagnosis rests on: looks at all ranks, and what the run's supervisor knows where there is one.

Who looks is told apart here and nowhere else: the supervisor of a guarded run (it may trace its ranks, has seen all of
the run, and has learned what is usual in it), or guardctl itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.hooks.wire.board import Field, Milestone
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.client.supervisor_client import ask
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReaders
from guardrun.supervisor.collect.ranks.boards import (
    BLANK,
    BoardReader,
    open_boards,
    phase_of,
    progress_of,
    step_of,
)
from guardrun.supervisor.collect.ranks.look import take_look
from guardrun.supervisor.diagnose.answer import LOOK, LookAnswer
from guardrun.supervisor.diagnose.rank_processes import FoundRank, hooks_of
from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.state import Attempt, RankState, State
from guardrun.supervisor.rundir.run_directory import RunFile

LOOK_TIMEOUT_S = 45.0
"""Longer than the longest look, with what a supervisor that is looking already has to end first."""
GONE = "the process is gone"


class Glance(NamedTuple):
    """One look at all ranks, and what was known when it had been taken."""

    state: State
    ranks: dict[int, RankLook]
    missing: dict[int, str]
    """Ranks that could not be looked at, with the reason."""
    now_s: float
    wall_s: float
    """Seconds since the epoch at now_s."""


class NotUnderstood(Exception):
    """The supervisor is another version of guardrun."""


Look = Callable[[], Glance]


def by_supervisor(run: RunFile, run_dir: Path, timeout_s: float = LOOK_TIMEOUT_S) -> Glance:
    """Have the run's supervisor look. Raises Unreachable, and NotUnderstood."""
    ask(run, run_dir, "status")  # one that is stopped or gone shows within seconds, whatever a look may take
    answer = ask(run, run_dir, LOOK, timeout_s=timeout_s)
    if not answer.is_ok:
        raise NotUnderstood(answer.error)
    try:
        told = msgspec.convert(answer.data, known_type(LookAnswer))
    except (msgspec.ValidationError, ValueError) as error:
        raise NotUnderstood(f"its answer is not one of this version of guardrun: {error}") from None
    looks = {look.global_rank: look for look in told.ranks}
    return Glance(told.state, looks, told.missing, told.now_s, told.wall_s)


class DirectLooker:
    """Looks at ranks without any supervisor; their boards are read where they have hooks."""

    def __init__(self, found: list[FoundRank], *, world_size: int, run: RunFile | None = None) -> None:
        """run: the guarded run that they are of, where its own supervisor does not answer."""
        self._found = found
        self._world_size = world_size
        self._clock = EngineClock(run.clock_base_s, run.clock_mono_s) if run else EngineClock(0.0, 0.0)
        self._settings = run.settings if run else Settings()
        hooks = hooks_of(found)
        self._sockets, self.attempt = hooks or ("", 0)
        self._boards: dict[int, BoardReader] = {}
        self._recorders = RecorderReaders()
        if hooks is not None:
            self._boards = open_boards(self._sockets, self.attempt, (each.rank.global_rank for each in found))

    def look(self) -> Glance:
        """Look now; takes seconds."""
        result = take_look(
            self.attempt,
            [each.rank for each in self._found],
            boards=self._boards,
            clock=self._clock,
            sockets_dir=self._sockets or os.devnull,
            folder=None,
            recorders=self._recorders,
        )
        looks = {look.global_rank: look for look in result.ranks}
        for each in self._found:
            look = looks.get(each.rank.global_rank)
            if look is not None and look.process.state in "ZX":
                del looks[each.rank.global_rank]
                result.missing[each.rank.global_rank] = GONE
        return Glance(self._state(looks, result.missing), looks, result.missing, self._clock.now(), time.time())

    def close(self) -> None:
        """Unmap the boards; nothing else is held between looks."""
        for board in self._boards.values():
            board.close()

    def _state(self, looks: dict[int, RankLook], missing: dict[int, str]) -> State:
        ranks = {each.rank.global_rank: self._rank(each, looks, missing) for each in self._found}
        progress_s = max((rank.progress_s for rank in ranks.values()), default=0.0)
        attempt = Attempt(
            number=self.attempt,
            started_s=max(self._started_s(each) for each in self._found),
            ranks=ranks,
            alive=len(looks),
            progress_s=progress_s,
            has_progress=progress_s > 0,
            step=max((rank.step for rank in ranks.values()), default=0),
        )
        return State(
            phase=Phase.RUNNING,
            settings=self._settings,
            world_size=self._world_size,
            attempt=attempt,
            last_s=self._clock.now(),
        )

    def _rank(self, each: FoundRank, looks: dict[int, RankLook], missing: dict[int, str]) -> RankState:
        number = each.rank.global_rank
        board = self._boards.get(number)
        words = (board.read() if board is not None else None) or BLANK
        look = looks.get(number)
        return RankState(
            rank=each.rank,
            state=look.process.state if look is not None else "?" if missing.get(number) == GONE else "S",
            progress_s=self._clock.at_ns(words[Field.PROGRESS_NS]),
            progress=progress_of(words),
            step=step_of(words),
            milestones=words[Field.MILESTONES],
            phase=phase_of(words),
            has_ended=bool(words[Field.MILESTONES] & Milestone.ENDED),
        )

    def _started_s(self, each: FoundRank) -> float:
        """When its process began. The kernel counts from the boot, a suspended machine's sleep included."""
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - each.stat.start / os.sysconf("SC_CLK_TCK")
        return self._clock.now() - max(0.0, age_s)
