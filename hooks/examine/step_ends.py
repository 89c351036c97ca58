"""What those who look at a step from its end ask there, on the thread that trains."""

from __future__ import annotations

import sys

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

_CAPTURES = int(Field.CAPTURES)


class Turn:
    """Taken once, by one of two threads: whoever has it does what there is to do, or sees to it that nobody does."""

    def __init__(self) -> None:
        self._left = [None]

    def is_taken_now(self) -> bool:
        """Whether it is the caller's."""
        try:
            self._left.pop()
        except IndexError:
            return False
        return True


def why_not_here(rank: Rank) -> str:
    """Why nothing may be done at the end of this step, whose optimizer has just stepped; empty: it may."""
    if rank.words[_CAPTURES] or sys.modules["torch"]._C._current_graph_task_id() != -1:
        return "its optimizers step within a backward pass, or in a graph that is captured"
    return ""
