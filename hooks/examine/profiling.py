"""What ranks' steps go to, operator by operator and on the device, on a person's request (`guardctl profile`).

Between steps, on the thread that trains (kineto.py):

    a plain step        is only timed: what the profiler costs is told beside it, and what a step is that hangs
    a first one         with the profiler on takes what comes but once, as the start of the device's recorder
    steps               as many as asked for, but no more once MAX_GROWN_BYTES have been recorded; marks between them

It is one session, and no two in a row: what began in the first and ends in the second writes to memory that is free.

The hooks' thread writes what was recorded, as a Chrome trace, into the run's socket folder: on this node, never on a
network's file system, since torch keeps the GIL while it writes. The node's supervisor reads it there
(supervisor/node/rank_profiles.py).

A step that takes far longer than those before it (an evaluation, a save, a hang) would record without end: then the
profiler is taken off in the midst of it, and what was whole by then is told.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident
from time import monotonic_ns

from guardrun.hooks.examine.confined_code import is_of_signal
from guardrun.hooks.examine.kineto import Recorder, find_obstacle, note_open, read_allocated
from guardrun.hooks.examine.step_ends import why_not_here
from guardrun.hooks.patches.device_memory import find_device
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_PROFILED_S, MAX_PROFILED_STEPS, STEP_MARK, profile_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_GROWN_BYTES = 40 << 20
"""By which allocations of C and C++ may grow between steps: an event takes 230 bytes there. Taking the profiler off
takes another 10 µs for each, and 1.6 KB until its 270 bytes are written."""
BLIND_STEPS = 3
"""At most, where that is not known: with another allocator, or an old C library."""
EVENT_BYTES = 700
"""Of a trace: those of a device are longer."""
SPARE_BYTES = 256 << 20
"""What is left to others where the trace is written."""
LONG, LONG_NS = 5, 2_000_000_000
"""A step is too long for the profiler beyond so many times a plain one, and this."""
FIRST_NS = 10_000_000_000
"""Likewise the first one: much is done but once in it."""
LATE_NS = 5_000_000_000
"""After the time is over: for what was asked to be taken off."""
_STEP = int(Field.STEP)
WAITING, PLAIN, FIRST, ON, DONE, OVER = "waiting", "plain", "first", "on", "done", "over"


class Profiling:
    """One request. Arguments: `steps`; `seconds`, at most."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        steps, seconds = int(arguments.get("steps") or 0), float(arguments.get("seconds") or 0.0)
        if not 1 <= steps <= MAX_PROFILED_STEPS or not 0 < seconds <= MAX_PROFILED_S:
            raise ValueError(f"1 to {MAX_PROFILED_STEPS} steps can be profiled, for {MAX_PROFILED_S:g} s at most")
        torch, counter = sys.modules.get("torch"), rank.steps
        if counter is None or torch is None or not hasattr(torch, "profiler"):
            raise ValueError("it has not imported torch's optimizers: steps are counted by them")
        if why := find_obstacle(rank, torch):
            raise ValueError(why)
        self._rank, self._torch, self._counter = rank, torch, counter
        self._wanted = steps
        self.ends_ns = self._until_ns = monotonic_ns() + int(seconds * 1e9)
        self._lock = allocate_lock()
        """Held by whoever changes what is below, for a moment."""
        self._state = WAITING
        self._why = ""
        """It was ended before its time."""
        self._closer = self._last_step = self._last_ns = 0
        """The end of the last step: id() of its optimizer, the board's count, when."""
        self._plain_ns = 0
        self._steps: list[tuple[int, int]] = []
        self._allocated = 0
        """By C and C++, when the profiler had been put on."""
        self._results: Any = None
        self._uses = ""
        """The kind of device that it trains on; empty: none."""
        self._recorder = Recorder(rank, torch, self._on_lost)
        counter.watch(self._on_step)

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Have steps looked at until it is over; then write the trace, and answer."""
        if self._state is DONE:
            return self._describe()
        if self._state is OVER:
            raise ValueError(self._why)
        recorder, is_late = self._recorder, now_ns >= self.ends_ns
        is_called_off = self.ends_ns < self._until_ns
        if not recorder.is_on:
            if is_late:
                if not self._why:
                    never = "no optimizer's step ended on the thread that trains"
                    self._why = "it was called off before it began" if is_called_off else never
                self.end()
                raise ValueError(self._why)
            self._rank.pace.quiet_until = 0
            return None
        lasts_ns = now_ns - self._last_ns
        if now_ns >= self.ends_ns + LATE_NS:
            raise ValueError(
                f"a step has not ended for {lasts_ns / 1e9:.0f} s, and runs no Python: the profiler is on in it, and "
                "is taken off as soon as it does (guardctl stacks tells where it stands)"
            )
        if is_late or lasts_ns > LONG * self._plain_ns + (FIRST_NS if self._state is FIRST else LONG_NS):
            if is_late:
                why = "it was called off" if is_called_off else "the time was over"
            else:
                why = f"a step went on for {lasts_ns / 1e9:.1f} s"
            recorder.post(f"{why} (steps took {self._plain_ns / 1e9:.3g} s before)")
        return None

    def end(self) -> None:
        """Profile no more; what is on is taken off by the thread that trains."""
        held = self._lock.acquire(timeout=1.0)  # a forked child may have it from a thread that it does not have
        try:
            if self._state not in (DONE, OVER):
                self._state, self._why = OVER, self._why or "it was ended"
            self._counter.watch(None)
            if self._recorder.is_on and os.getpid() == self._rank.pid:
                self._recorder.post(self._why)
        finally:
            if held:
                self._lock.release()

    # On the thread that trains -------------------------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        if get_ident() != self._rank.owner_ident or not self._lock.acquire(False):  # it never waits
            return
        self._rank.pace.quiet_until = 0  # the next one, too
        try:
            self._end_step(optimizer)
        except Exception as error:
            self._finish(self._recorder.stop(), f"{type(error).__name__}: {error}"[:300])
            if is_of_signal(error):  # a handler's, for one that has come meanwhile: the script's
                self._rank.passed_on = error
                raise
        finally:
            self._lock.release()

    def _end_step(self, optimizer: Any) -> None:
        rank = self._rank
        if self._state in (DONE, OVER):
            return
        if why := why_not_here(rank):
            self._why = why
            return
        if self._state is not WAITING and id(optimizer) != self._closer and rank.words[_STEP] == self._last_step:
            return  # of several optimizers: the step goes on
        now_ns = monotonic_ns()
        took_ns, step = now_ns - self._last_ns, rank.step_now()
        if self._steps:  # of a second training the board does not count the first steps
            step = max(step, self._steps[-1][0] + 1)
        if self._state is WAITING:
            self._state = PLAIN
        elif self._state is PLAIN:
            self._plain_ns = took_ns
            kind, index = find_device(self._torch, optimizer)
            self._uses = kind if index >= 0 else ""
            self._begin()
        else:
            self._recorder.mark(f"{STEP_MARK}{step}")
            if self._state is ON:
                self._steps.append((step, took_ns))
            elif self._state is FIRST:
                self._state = ON
            grown = read_allocated() - self._allocated
            most = self._wanted if grown > 0 else min(BLIND_STEPS, self._wanted)
            if len(self._steps) >= most or (grown > MAX_GROWN_BYTES and self._steps):
                self._finish(self._recorder.stop())
        self._closer, self._last_step, self._last_ns = id(optimizer), rank.words[_STEP], monotonic_ns()

    def _begin(self) -> None:
        """Record from here on, if nothing speaks against it any more."""
        if why := find_obstacle(self._rank, self._torch):
            self._state, self._why = OVER, why
            return
        self._recorder.start()
        self._state, self._allocated = FIRST, read_allocated()

    def _finish(self, results: Any, why: str = "") -> None:
        """Nothing is recorded any more: this is all. why: it was ended before its time."""
        if self._state in (DONE, OVER):
            return
        self._counter.watch(None)
        self._results = results
        has_some = results is not None and self._steps
        self._why = why or ("" if has_some else self._why or "nothing was recorded")
        self._state = DONE if has_some else OVER

    def _on_lost(self, why: str) -> None:
        """It has to be taken off now."""
        results = self._recorder.stop()
        is_told = self._state is not OVER
        self._finish(results, why)
        if self._state is OVER and results is not None:  # nobody will look at it any more
            note_open(results.events())
        if self._state is OVER and is_told:
            self._why = f"no step could be profiled from first to last: {why}"

    # The answer ----------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        rank, recorder = self._rank, self._recorder
        results, self._results = self._results, None
        path = os.path.join(rank.sockets, profile_name(rank.attempt, rank.global_rank))
        events = results.events()
        note_open(events)
        found = os.statvfs(rank.sockets)
        needed = len(events) * EVENT_BYTES + SPARE_BYTES
        if found.f_bavail * found.f_frsize < needed:
            raise ValueError(f"{rank.sockets} has less than the {needed >> 20} MB of room that the trace may take")
        if os.path.lexists(path):
            os.unlink(path)
        began_ns = monotonic_ns()
        results.save(path)
        export_ns = monotonic_ns() - began_ns
        if not os.path.isfile(path):
            raise ValueError("torch did not write the trace: the rank's stderr says why")
        return {
            "steps": self._steps,
            "wanted": self._wanted,
            "plain_ns": self._plain_ns,
            "held_ns": [recorder.start_ns, recorder.stop_ns, export_ns],
            "events": len(events),
            "unrecorded": "" if recorder.device else self._uses[:40],
            "torch": str(self._torch.__version__)[:80],
            "why": self._why,
        }
