"""The end of a rank: the exception that nobody caught, and the moment when its main code is over.

Order matters, because what follows the script's last line may hang (a destructor of a process group, a thread that
never ends): the exception is written to a file and sent before the interpreter prints it, the end before it joins
threads. Where a script has replaced `sys.excepthook`, the exception is found at exit, in sys.last_exc.

`sys.exit("why")` passes no hook on its way out, and its words are gone when it has: they are noted as it is called. A
KeyboardInterrupt is somebody's Ctrl-C, and no error, unless the script itself has raised it.
"""

from __future__ import annotations

import atexit
import sys
import threading
from os import getpid
from time import monotonic_ns

from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.rank.rank import FLUSH, STOP
from guardrun.hooks.wire.board import Field, Milestone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

    from guardrun.hooks.rank.rank import Rank

FLUSH_S = 0.25
STOP_S = 5.0
"""Of a busy node. Else it takes milliseconds, where a supervisor reads or none listens any more, and LINGER_S
(hooks/beat/message_sender.py) where one is there and does not read."""


def start(rank: Rank) -> None:
    """Watch for the end."""
    watch = EndWatch(rank, sys.excepthook)
    sys.excepthook = watch.excepthook
    sys.exit = watch.exit
    # threading's own list runs before non-daemon threads are joined, atexit's after.
    register = getattr(threading, "_register_atexit", atexit.register)
    register(watch.on_end)
    atexit.register(watch.on_last)


class EndWatch:
    """Reports an exception at most once, and the end."""

    def __init__(self, rank: Rank, previous: object) -> None:
        self._rank = rank
        self._previous = previous
        self._exit = sys.exit
        self._is_reported = False
        self._words: tuple[str, list[tuple[str, str, int]], int] | None = None
        """Of the last sys.exit: text, where from, when (CLOCK_MONOTONIC, ns)."""

    def excepthook(self, kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        """sys.excepthook: report, then do what would have been done."""
        self._report(error, tb)
        if self._rank.in_time is not None:
            self._rank.in_time.hold(error)
        if isinstance(error, KeyboardInterrupt):
            _end_by_signal()
        self._previous(kind, error, tb)  # type: ignore[operator]  # whatever stood in sys.excepthook

    def exit(self, status: Any = None, /) -> NoReturn:
        """sys.exit: note its words, then do what would have been done."""
        self._words = None
        if isinstance(status, str) and status:
            frame = sys._getframe(1)
            place = (frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno)
            self._words = (status, [place], monotonic_ns())
        self._exit(status)

    def on_end(self) -> None:
        """The main code is over; the interpreter begins to finalise."""
        rank = self._rank
        if rank is not _rank.active or getpid() != rank.pid:
            return
        if sys.excepthook != self.excepthook:
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if error is not None:
                self._report(error, error.__traceback__)
        if self._words is not None and not self._is_reported:
            self._leave_words(*self._words)
        if rank.in_time is not None:
            rank.in_time.finish()
        if rank.metrics is not None and rank.is_owner():
            rank.metrics.flush()
        rank.is_ended = True
        if rank.gc_policy is not None:
            rank.gc_policy.give_back()
        rank.mark(Milestone.ENDED)
        rank.send("Ended", at_ns=monotonic_ns())

    def on_last(self) -> None:
        """The last of atexit's functions: end our thread before the interpreter freezes it."""
        rank = self._rank
        if rank is not _rank.active or getpid() != rank.pid:
            return
        # One that has failed answers nobody. The board has a time from the start on (hooks/startup/activate.py).
        if rank.board is None or rank.words[Field.HEART_NS]:
            rank.outbox.wait_for(STOP, STOP_S)

    def _leave_words(self, text: str, frames: list[tuple[str, str, int]], at_ns: int) -> None:
        """Only as a file: it is looked at where the rank has then ended with 1."""
        try:
            from guardrun.hooks.rank.exception_report import describe_exit, write_raised

            write_raised(self._rank, describe_exit(text, frames, at_ns))
        except Exception as failure:
            self._rank.fail("exit words", failure)

    def _report(self, error: BaseException, tb: TracebackType | None) -> None:
        rank = self._rank
        if self._is_reported or rank is not _rank.active or _is_an_end(error, tb):
            return
        self._is_reported = True
        try:
            from guardrun.hooks.rank.exception_report import (
                describe,
                describe_batch,
                write_raised,
                write_torchelastic,
            )

            fields = {**describe(error, tb), "data": describe_batch(rank)}
            try:
                write_raised(rank, fields)
                write_torchelastic(error, tb)
            finally:
                rank.send("UncaughtException", **fields)
                rank.outbox.wait_for(FLUSH, FLUSH_S)
        except Exception as failure:
            rank.fail("exceptions", failure)


def _end_by_signal() -> None:
    """Have the interpreter end by SIGINT, as it does after a KeyboardInterrupt that nobody caught.

    It remembers that one ended the code that it ran last (pythonrun.c, run_eval_code_obj), and a report may have run
    code from text since, as the making of a named tuple does.
    """
    try:
        exec("raise KeyboardInterrupt", {})
    except KeyboardInterrupt:
        pass


def _is_an_end(error: BaseException, tb: TracebackType | None) -> bool:
    """Say whether this is how programs are ended, and no error of theirs."""
    if not isinstance(error, KeyboardInterrupt):
        return isinstance(error, SystemExit)
    from opcode import opmap

    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    # A signal's comes between two instructions, whichever they are; the script's own, by a statement that raises.
    return tb is None or tb.tb_frame.f_code.co_code[tb.tb_lasti] != opmap["RAISE_VARARGS"]
