"""Takes a person's requests from the board, one at a time, and answers them. The hooks' thread calls all that is here.

What is asked for is imported when it is. It ends by itself: a request says for how long, and nobody need be there any
more to take the answer.
"""

from __future__ import annotations

import os
from time import monotonic_ns

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import (
    EVAL,
    MAX_REQUEST_BYTES,
    PROFILE,
    RATE,
    SAVE,
    SNAPSHOT,
    answer_name,
    read_whole,
    request_name,
    stop_name,
    write_whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guardrun.hooks.rank.parts import Examination

MAX_WHY_CHARS = 500


def _allocations(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.allocations import Allocations

    return Allocations(rank, arguments)


def _evaluation(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.evaluation import Evaluation

    return Evaluation(rank, arguments)


def _modules(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.module_times import ModuleTimes

    return ModuleTimes(rank, arguments)


def _profile(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.profiling import Profiling

    return Profiling(rank, arguments)


def _snapshot(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.device_snapshot import DeviceSnapshot

    return DeviceSnapshot(rank, arguments)


def _rate(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.learning_rate import LearningRate

    return LearningRate(rank, arguments)


def _save(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.in_time_save import InTimeSave

    return InTimeSave(rank, arguments)


def _state(rank: Rank, arguments: dict[str, Any]) -> Examination:
    from guardrun.hooks.examine.inspection import Inspection

    return Inspection(rank, arguments)


KINDS: dict[str, Callable[[Rank, dict[str, Any]], Examination]] = {
    "allocations": _allocations,
    EVAL: _evaluation,
    "modules": _modules,
    PROFILE: _profile,
    SNAPSHOT: _snapshot,
    RATE: _rate,
    SAVE: _save,
    "state": _state,
}
"""What may be asked for."""


class Examiner:
    """One rank's."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._number = 0
        """Of the request that is under way; …"""
        self._what = ""
        """… and its kind."""

    def on_beat(self, now_ns: int) -> None:
        """Take what has been asked for, and go on with what was."""
        rank = self._rank
        asked = rank.words[Field.EXAMINE_ASKED]
        if asked != rank.words[Field.EXAMINE_TAKEN]:
            rank.words[Field.EXAMINE_TAKEN] = asked
            self._accept(asked, now_ns)
        if rank.examination is not None:
            self._advance(rank.examination, now_ns)

    def stop(self) -> None:
        """The interpreter is about to end, or this thread."""
        examination, self._rank.examination = self._rank.examination, None
        if examination is not None:
            examination.end()

    def _accept(self, number: int, now_ns: int) -> None:
        rank = self._rank
        try:
            path = os.path.join(rank.sockets, request_name(rank.attempt, rank.global_rank))
            asked = read_whole(path, number, MAX_REQUEST_BYTES)
        except (OSError, ValueError):
            return  # it has been withdrawn
        if (running := rank.examination) is not None:
            left_s = max(0.0, (running.ends_ns - now_ns) / 1e9)
            self._answer(number, error=f"it is busy with an earlier request ({self._what}), for {left_s:.0f} s more")
            return
        what, arguments = asked.get("what"), asked.get("arguments")
        make = KINDS.get(what) if isinstance(what, str) else None
        if make is None or not isinstance(arguments, dict):
            self._answer(number, error=f"its hooks know no request {what!r}: there are {', '.join(sorted(KINDS))}")
            return
        try:
            with rank.import_lock:  # its module is imported: nobody may fork in the middle of that
                rank.examination = make(rank, arguments)
        except Exception as error:
            self._answer(number, error=_why(error))
            return
        self._number, self._what = number, str(what)

    def _advance(self, examination: Examination, now_ns: int) -> None:
        try:
            if self._is_to_stop():
                examination.ends_ns = min(examination.ends_ns, now_ns)
            told = examination.on_beat(now_ns)
        except Exception as error:
            self.stop()
            self._answer(self._number, error=_why(error))
            return
        if told is not None:
            self.stop()
            self._answer(self._number, told=told)

    def _is_to_stop(self) -> bool:
        """Whether somebody wants the one that goes on to end now."""
        path = os.path.join(self._rank.sockets, stop_name(self._rank.attempt, self._rank.global_rank))
        if not os.path.exists(path):
            return False
        try:
            return read_whole(path, self._number, MAX_REQUEST_BYTES).get("what") == self._what
        except (OSError, ValueError):
            return False

    def _answer(self, number: int, told: dict[str, Any] | None = None, error: str = "") -> None:
        rank = self._rank
        if number < rank.words[Field.EXAMINE_GIVEN]:
            return  # who asked has gone, and who asked later takes the answer that is there
        try:
            path = os.path.join(rank.sockets, answer_name(rank.attempt, rank.global_rank))
            answer = {"number": number, "at_ns": monotonic_ns()}
            write_whole(path, answer | ({"error": error[:MAX_WHY_CHARS]} if told is None else {"told": told}))
        except OSError as why:
            rank.fail("examination", why)
        rank.words[Field.EXAMINE_GIVEN] = number


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
