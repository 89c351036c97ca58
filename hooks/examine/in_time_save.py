"""Has the script's own function save, before the ranks are ended: on a thread of its own (hooks/rank/save_gate.py).

Asked for by the supervisor alone, which stops the ranks once this has answered, or its time is over.
"""

from __future__ import annotations

import os
import signal
import time
from _thread import get_ident, start_new_thread
from time import monotonic_ns

from guardrun.hooks.rank.rank import WAKE, Rank
from guardrun.hooks.rank.save_gate import BEHIND, SaveGate
from guardrun.hooks.saves.checkpoint_files import quiet_saves
from guardrun.hooks.saves.in_time_files import NotSaved
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import LAST_STEP, newest_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOMENT_NS = 3_000_000_000
"""So long a moment is waited for at which the state is that after a whole step."""
POLL_S = 0.02
LEAVE_NS = 1_000_000_000
"""So long before its time is over it is told that nothing was called."""
GRAIN_NS = 50_000_000
"""A file's time is the kernel's last tick, which lies before it was written."""
MAX_WHY_CHARS = 300
MAX_PATH_CHARS = 4096


class InTimeSave:
    """One request. Arguments: `step`, which is to be the last one that is finished; `until_ns` (CLOCK_MONOTONIC).

    LAST_STEP: training goes on, and whichever step is finished will do.

    `token`: the same for all who save parts of it, and no other request's.

    And where what is trained is sharded, `part`: which one it is to save, of how many. `halt`: training goes on until
    this step, which it has not finished yet, and waits there.
    """

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        step, until_ns, gate = arguments.get("step"), arguments.get("until_ns"), rank.in_time
        if not isinstance(step, int) or not isinstance(until_ns, int):
            raise ValueError("it is not said what is to be saved")
        if not isinstance(gate, SaveGate) or (gate.function is None and gate.saver is None):
            raise ValueError("its script has given no function to save_with()")
        self._rank, self._gate, self._step = rank, gate, step
        self._halts = arguments.get("halt") is True
        self._function, self._saver = gate.function, gate.asked_saver()
        self.ends_ns = until_ns
        self._own_steps = -1
        """Of this attempt, that it is to hold."""
        self._told: dict[str, Any] | None = None
        """Once it is over."""
        self._is_given_up = False
        part = arguments.get("part")
        gate.asked_part = (int(part[0]), int(part[1])) if isinstance(part, list) and len(part) == 2 else None
        token = arguments.get("token")
        gate.asked_token = token if isinstance(token, str) and token.isalnum() else ""
        gate.until_ns, gate.is_answered, gate.is_asked = until_ns, False, True
        # Blocked before it is there, and inherited: signals are for the thread that trains.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """The answer, once it is over: `path` and more; `why` nothing was called; or `failed`: what went wrong."""
        if self._told is None and now_ns >= self.ends_ns:
            self._is_given_up = True
            return {"failed": "its time was over"}
        return self._told

    def end(self) -> None:
        """Whoever waits for it waits no longer; the function can't be ended."""
        self._is_given_up = True
        self._gate.is_answered = True

    # On the thread that saves ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            told = self._save()
        except NotSaved as error:
            told = {"failed": str(error)[:MAX_WHY_CHARS]}
        except BaseException as error:
            told = {"failed": f"{type(error).__name__}: {error}"[:MAX_WHY_CHARS]}
        self._told = told
        self._rank.outbox.put(WAKE, {})

    def _save(self) -> dict[str, Any]:
        gate = self._gate
        if (self._step == LAST_STEP or self._halts) and self._function is None:
            return {"why": "its trainer saves where should_checkpoint() says so"}
        try:
            if why := (self._halt() if self._halts else "") or self._shut():
                return {"why": why[:MAX_WHY_CHARS]}
            if self._is_given_up or self._rank.pid != os.getpid():
                return {"why": "it was called off"}
            self._step, self._own_steps = self._rank.step_now(), self._rank.words[Field.STEP]
            told = self._call()
            has_stood = self._halts or gate.asked_part is None
            if self._function is not None and has_stood and "path" in told and (why := gate.why_moved()):
                return {"failed": why}
            return told
        finally:
            gate.reopen()

    def _halt(self) -> str:
        """Wait until training has come to that step, and stands there; empty, or why it doesn't."""
        gate, step = self._gate, self._step
        why = gate.halt_after(step)
        while not why and not gate.is_halted:
            if gate.is_ending:
                why = f"its script has ended, before it began another step after {step}"
            elif self._is_given_up or monotonic_ns() >= self.ends_ns - LEAVE_NS:
                why = f"it has not come to the end of step {step} and on to the next in time"
            time.sleep(POLL_S)
        return why

    def _shut(self) -> str:
        """Shut the way into optimizer.step(), at a moment at which all is of one step; empty, or why there was none."""
        step = LAST_STEP if self._halts else self._step
        until_ns = min(self.ends_ns, monotonic_ns() + MOMENT_NS)
        while why := self._gate.shut(step):
            # A device that is only behind works on meanwhile, and training has nothing to wait for.
            end_ns = self.ends_ns - LEAVE_NS if self._halts and why == BEHIND else until_ns
            if self._is_given_up or monotonic_ns() >= end_ns:
                break
            time.sleep(POLL_S)
        return why

    def _call(self) -> dict[str, Any]:
        began_ns, began_wall_ns = monotonic_ns(), time.time_ns()
        rank = self._rank
        rank.code_ident = rank.saving_ident = get_ident()  # what it reads is none of training's batches
        try:
            with quiet_saves(get_ident()):
                returned: object = None
                if self._function is not None:
                    returned = self._function()
                elif self._saver is not None:
                    returned = self._saver.save(self._gate.why_no_more)
        finally:
            rank.code_ident = rank.saving_ident = 0
        ended_ns = monotonic_ns()
        took_s = (ended_ns - began_ns) / 1e9
        if ended_ns >= self.ends_ns:  # training may have gone on meanwhile
            return {"failed": f"its function took {took_s:.1f} s"}
        if returned is None:
            return {"failed": "its function returned no path"}
        path = os.fspath(returned) if isinstance(returned, str | os.PathLike) else None
        if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
            return {"failed": f"its function returned no path, but {type(returned).__name__}"}
        path = os.path.abspath(path)
        try:
            found = os.stat(path)
            written_ns = newest_ns(path)
        except (OSError, ValueError) as error:
            return {"failed": f"what its function returned is not there: {error}"[:MAX_WHY_CHARS]}
        if written_ns < began_wall_ns - GRAIN_NS:
            return {"failed": f"{path} was written before its function was called"[:MAX_WHY_CHARS]}
        told = {"path": path, "inode": found.st_ino, "wall_s": time.time(), "took_s": took_s, "step": self._step}
        told |= {"written_ns": written_ns, "own_steps": self._own_steps}
        if self._function is None and self._saver is not None:
            told["says"] = self._saver.step
        return told
