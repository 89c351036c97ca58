"""Asking the ranks to save: they agree on one call of should_checkpoint(), the same on all of them.

A number that some rank has passed already would set the ranks at odds, and their saves with them. So it lies beyond
what any rank can have called by the time that the last one has been told; how fast they call is followed for that.
    read_counts: boards → how often each rank has asked
    next_call: counts, pace and the way there → the number
    set_call: the number → boards
On one node nothing lies between reading and writing but a moment; where nodes are asked, each step is a message.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.collect.ranks.boards import BoardReader

WAY_S = 0.1
"""Between reading the boards and having written to the last: milliseconds, on a busy machine a time slice or two."""
SAFETY = 4
SLOW = 0.05
"""Calls that may be made on the way there: with fewer the very next one will do, and being overtaken is noticed."""
SAMPLES = 6
KNOWN_S = 3.0
"""Ranks that have not called for so long are known to be slow."""
MORE = (0, 3, 30)
"""Calls further ahead, each time that a rank turns out to have been faster."""

Boards = Mapping[int, BoardReader]


def read_counts(boards: Boards) -> dict[int, int]:
    """How often each rank has called should_checkpoint(); 0 where it never did, or has no board."""
    return {rank: _word(reader, Field.CHECKS) for rank, reader in boards.items()}


def next_call(counts: Mapping[int, int], pace: float | None, way_s: float) -> int | None:
    """The call at which all ranks can still say yes; None where a rank does not ask.

    pace: calls a second of the fastest rank; None: unknown. way_s: from reading the counts to having told every rank.
    """
    if not counts or not min(counts.values()):
        return None
    most = max(counts.values())
    if pace is None:
        # As many as it has done in all its time: beyond that it is, as far as anybody knows, not soon.
        return most + max(2, most)
    meanwhile = SAFETY * way_s * pace
    is_next = way_s <= WAY_S and meanwhile < SLOW
    return most + 1 + (0 if is_next else math.ceil(meanwhile) or 1)


def set_call(boards: Boards, at_call: int) -> None:
    """Have every rank say yes at that call."""
    for reader in boards.values():
        reader.write(Field.CHECKPOINT_AT, at_call)


def armed_call(boards: Boards) -> int:
    """The call that is set, and that some rank has still to make; 0 where there is none."""
    at_calls = [at for reader in boards.values() if (at := _word(reader, Field.CHECKPOINT_AT))]
    at_call = max(at_calls, default=0)
    return at_call if min(read_counts(boards).values(), default=0) < at_call else 0


def was_passed(boards: Boards, at_call: int) -> bool:
    """Whether a rank had made that call before it could know."""
    return any(
        _word(reader, Field.CHECKS) >= at_call and _word(reader, Field.CHECKPOINT_ACK) != at_call
        for reader in boards.values()
    )


def has_answered(boards: Boards, at_call: int) -> bool:
    """Say whether any rank has said yes."""
    return any(_word(reader, Field.CHECKPOINT_ACK) == at_call for reader in boards.values())


class SaveAgreement:
    """The ranks of one node, and how fast they call."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._of: frozenset[int] = frozenset()

    def sample(self, boards: Boards) -> None:
        """Once a second."""
        counts, now_s = read_counts(boards), time.monotonic()
        most = max(counts.values(), default=0)
        ours = frozenset(id(reader) for reader in boards.values())
        if ours != self._of or (self._samples and most < self._samples[-1][1]):
            self._samples.clear()
            self._of = ours
        self._samples.append((now_s, most))

    @property
    def pace(self) -> float | None:
        """Calls a second of late; None before that is known."""
        if len(self._samples) < 2:
            return None
        (began_s, first), (ended_s, last) = self._samples[0], self._samples[-1]
        took_s = ended_s - began_s
        is_known = took_s > 0 and (last > first or took_s >= KNOWN_S)
        return (last - first) / took_s if is_known else None

    def ask(self, boards: Boards) -> int | None:
        """Have all ranks of this node say yes at one call: which; None: not all of them ask."""
        at_call: int | None = None
        for more in MORE:
            at_call = next_call(read_counts(boards), self.pace, WAY_S)
            if at_call is None:
                return None
            at_call += more
            set_call(boards, at_call)
            if not was_passed(boards, at_call):
                break
        return at_call


def _word(reader: BoardReader, field: Field) -> int:
    words = reader.read()
    return words[field] if words is not None else 0
