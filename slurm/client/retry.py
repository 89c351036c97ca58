"""Asking again where Slurm is away: its controller is started anew, or too busy to answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

FIRST_S, MOST_S = 2.0, 30.0
"""Pauses grow from one to the other. A controller of a large cluster takes a minute or two to be back."""


class _Outcome(Protocol):
    @property
    def is_silent(self) -> bool:
        """Slurm has not answered: ask again."""
        ...


Answer = TypeVar("Answer", bound=_Outcome)


class Patience(NamedTuple):
    """How long, and by which clock."""

    until_s: float
    """Of now_s: it is asked for the last time then."""
    wait: Callable[[float], object] = time.sleep
    """For so long. Something true: no time is left, ask for the last time now."""
    now_s: Callable[[], float] = time.monotonic


def ask_again(
    ask: Callable[[], Answer], patience: Patience, first_silence: Callable[[Answer], object] | None = None
) -> Answer:
    """Ask until Slurm answers, or patience is at its end: the last answer. first_silence: told once, if it is silent.

    What is asked for has to bear to be asked for twice: an order may have arrived, and its answer not.
    """
    pause_s, is_last = FIRST_S, False
    while True:
        answer = ask()
        left_s = patience.until_s - patience.now_s()
        if not answer.is_silent or is_last or left_s <= 0:
            return answer
        if first_silence is not None:
            first_silence(answer)
            first_silence = None
        is_last = bool(patience.wait(min(pause_s, left_s)))
        pause_s = min(2 * pause_s, MOST_S)
