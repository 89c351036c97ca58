"""The ranks' boards, read from outside: mapped once, read by sampler and looks alike."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import msgspec

from guardrun.hooks.wire.board import MAGIC, OPS, PHASES, Board, Field, Milestone, board_name
from guardrun.supervisor.engine.model.events import StepBreakdown

_PROGRESS = (
    Field.PULSES,
    Field.BATCHES,
    Field.COLLECTIVES,
    Field.GROUP_SEQ,
    Field.SAVES,
    Field.GROUPS,
    Field.API_CALLS,
)
"""Everything that advances."""

BLANK: list[int] = [0] * len(Field)
"""A board that says nothing, as of a rank without hooks."""


class Part(msgspec.Struct, frozen=True):
    """Which part of what is trained a rank holds, where that is sharded."""

    index: int
    """From 0."""
    count: int
    """0: it is not known, or nothing is sharded."""
    is_ready: bool
    """A backward pass has begun since its last step."""


class BoardReader:
    """One rank's board; it may not be there (yet)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._board: Board | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self) -> list[int] | None:
        """All words, indexed by Field; None where there is no board."""
        with self._lock:
            if self._board is None and not self._is_closed:
                try:
                    self._board = Board(self._path)
                except (OSError, ValueError):
                    return None
            words = self._board.read() if self._board is not None else None
        if words is None or words[Field.MAGIC] not in (0, MAGIC):
            return None
        return words

    def write(self, field: Field, value: int) -> None:
        """Set one of the words that the supervisor writes; nothing where there is no board."""
        if self.read() is None:
            return
        with self._lock:
            if self._board is not None:
                self._board.words[field] = value

    def close(self) -> None:
        """Unmap the board; later reads find none. Any thread may call it."""
        with self._lock:
            self._is_closed = True
            if self._board is not None:
                self._board.close()
                self._board = None


def open_boards(
    sockets_dir: str | os.PathLike[str], attempt: int, global_ranks: Iterable[int]
) -> dict[int, BoardReader]:
    """Readers for the boards of an attempt's ranks."""
    return {rank: BoardReader(os.path.join(sockets_dir, board_name(attempt, rank))) for rank in global_ranks}


def progress_of(words: list[int]) -> int:
    """Everything that advances, summed."""
    return sum(words[field] for field in _PROGRESS)


def part_of(words: list[int]) -> Part:
    """What the rank holds, as it has said after its first step."""
    is_ready = words[Field.BACKWARD_AFTER] == words[Field.PULSES] + 1
    return Part(words[Field.PART] - 1, words[Field.PARTS], is_ready)


def step_of(words: list[int]) -> int:
    """Steps, those before the resumed checkpoint included."""
    is_numbered = words[Field.MILESTONES] & Milestone.API_NUMBERS
    return words[Field.STEP] + (0 if is_numbered else words[Field.STEP_BASE])


def spent_of(words: list[int]) -> StepBreakdown | None:
    """What its ordinary steps have gone to; None before the first, and where it is just being written."""
    steps = words[Field.SPENT_STEPS]
    if steps <= 0 or words[Field.SPENT_TAIL] != steps:
        return None
    fields = (Field.SPENT_NS, Field.SPENT_WAITED_NS, Field.SPENT_DATA_NS, Field.SPENT_GC_NS)
    return StepBreakdown(steps, *(round(words[field] / 1e9, 3) for field in fields))


def shares_of(words: list[int], age_s: float, now_ns: int) -> tuple[float, float]:
    """Shares of a rank's life so far that it waited for data, and that its collector took; -1 where unknown.

    age_s: how long its process has lived. What is going on at this moment counts.
    """
    if words[Field.MAGIC] != MAGIC or age_s <= 0:
        return -1.0, -1.0

    def share(total: Field, since: Field) -> float:
        ns = words[total] + (max(0, now_ns - words[since]) if words[since] else 0)
        return round(min(1.0, ns / 1e9 / age_s), 4)

    return share(Field.DATA_TOTAL_NS, Field.DATA_SINCE_NS), share(Field.GC_TOTAL_NS, Field.GC_SINCE_NS)


def phase_of(words: list[int]) -> str:
    """The phase's name; empty where no hooks write."""
    if words[Field.MAGIC] != MAGIC:
        return ""
    index = words[Field.PHASE]
    return PHASES[index] if 0 <= index < len(PHASES) else "other"


def collective_of(words: list[int]) -> str:
    """The torch.distributed function it is inside of; empty outside of any."""
    if words[Field.COLLECTIVE_SINCE_NS] == 0:
        return ""
    index = words[Field.COLLECTIVE_OP]
    return OPS[index] if 0 < index < len(OPS) else "collective"


LONG_WAIT_NS = 2_000_000_000
"""Waits are told from then on: shorter ones would make a report of every second differ."""


def waits_since_ns(words: list[int], now_ns: int) -> int:
    """Since when it has been in one and the same collective, or waiting for one batch; 0 where not for long."""
    since_ns = words[Field.COLLECTIVE_SINCE_NS] or words[Field.DATA_SINCE_NS]
    return since_ns if since_ns and now_ns - since_ns > LONG_WAIT_NS else 0
