"""Runs a person's code in the rank (`guardctl eval`): between two steps on the thread that trains, or beside it.

At the end of the next optimizer's step, on the thread that trains: nothing of training runs meanwhile. Where no step
ends for a while, on a thread of its own: the thread that trains stands then, or takes long, and may go on meanwhile.
Not within a backward pass, and not while a graph is captured.

While it runs on the thread that trains, the board says that the rank advances: nobody takes that for a hang, until its
time is over. Then it is interrupted (confined_code.py). What can't be is told, and training goes on when it returns.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from time import monotonic_ns

from guardrun.hooks.examine.confined_code import DONE, PLAIN_SENDS, Confined, Program, ThreadState, can_interrupt
from guardrun.hooks.examine.frame_names import Names, mentioned
from guardrun.hooks.examine.optimizer_settings import Settings, describe_changes
from guardrun.hooks.examine.step_ends import Turn, why_not_here
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_CODE_BYTES, MAX_EVALUATED_S, MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PROGRESS_NS, _GC_SINCE_NS = int(Field.PROGRESS_NS), int(Field.GC_SINCE_NS)
BURST, PAUSE_S = 8, 0.05
"""Interruptions a beat, and the time between two of them."""
HELD_NS = 3_000_000_000
"""After its time: by then it has ended, or can't be interrupted."""
MAX_NAMES = 20
AT_STEP, BESIDE, HELD = "step", "beside", "held"


class Evaluation:
    """One request. Arguments: `code`; `timeout_s`; `wait_s`, for the end of a step; `only_at_step`: never beside."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        if rank.settings.get("eval") is not True:
            raise ValueError("[live] eval = false: this run was started so that nobody can run code in its ranks")
        code, timeout_s, wait_s = (arguments.get(name) for name in ("code", "timeout_s", "wait_s"))
        if not isinstance(code, str) or len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise ValueError(f"code of up to {MAX_CODE_BYTES >> 10} KB can be run")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_EVALUATED_S:
            raise ValueError(f"code is run for up to {MAX_EVALUATED_S:g} seconds")
        if not isinstance(wait_s, int | float) or not 0 <= wait_s <= MAX_SECONDS:
            raise ValueError(f"the end of a step is waited for up to {MAX_SECONDS:g} seconds")
        try:
            self._program = Program(code)
        except Exception as error:
            raise ValueError(f"it can't be compiled: {type(error).__name__}: {error}") from None
        self._rank = rank
        self._confined = Confined(self._program)
        now_ns = monotonic_ns()
        self._asked_ns = now_ns
        self._beside_ns = now_ns + int(wait_s * 1e9)
        self._timeout_ns = int(timeout_s * 1e9)
        self._only_at_step = arguments.get("only_at_step") is True
        self.ends_ns = self._beside_ns + self._timeout_ns + 2 * HELD_NS
        self._turn = Turn()
        """Whoever takes it runs the code; or sees to it that nobody does."""
        self._ident = 0
        """The thread that runs it."""
        self._began_ns = 0
        self._took_ns = 0
        self._where = ""
        self._why = ""
        """It has not been run at the end of a step."""
        self._is_done = False
        self._is_over = False
        self._done = allocate_lock()
        self._done.acquire()
        self._told: dict[str, Any] = {}

    # On the hooks' thread --------------------------------------------------------------------------------------------

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Wait for a step's end, or begin beside it; interrupt what takes too long; the answer, once it is over."""
        if self._is_done:
            return self._describe()
        if self._ident:
            return self._watch(now_ns)
        rank = self._rank
        if now_ns < min(self._beside_ns, self.ends_ns):
            if rank.steps is not None:
                rank.steps.watch(self._on_step)
            rank.pace.quiet_until = 0
            return None
        if self._only_at_step or now_ns >= self.ends_ns:
            if not self._turn.is_taken_now():
                return None  # it has just begun
            raise ValueError(f"it was not run: {self._why_not()}")
        if self._turn.is_taken_now():
            self._begin_beside()
        return None

    def end(self) -> None:
        """It is run no more, if it has not begun; one that runs beside training is interrupted."""
        if self._is_over:
            return
        self._is_over = True
        self._turn.is_taken_now()
        if self._rank.steps is not None:
            self._rank.steps.watch(None)
        if self._where == BESIDE and not self._is_done and self._rank.pid == os.getpid():
            # The interpreter may be about to end: this thread must not be in torch's C++ by then.
            self._confined.interrupt()
            self._done.acquire(timeout=1.0)

    def _why_not(self) -> str:
        waited_s = (self._beside_ns - self._asked_ns) / 1e9
        return self._why or f"no optimizer's step ended on the thread that trains within {waited_s:g} s"

    def _watch(self, now_ns: int) -> dict[str, Any] | None:
        """It runs."""
        over_ns = now_ns - (self._began_ns + self._timeout_ns)
        if over_ns < 0:
            if self._where == AT_STEP:
                self._rank.words[_PROGRESS_NS] = now_ns
            return None
        for _ in range(BURST):
            self._confined.interrupt()
            if self._done.acquire(timeout=PAUSE_S):
                return self._describe()
        # Before it has been tried in earnest (a signal's handler runs) nobody may turn away: it would never end.
        is_tried = self._confined.sends > PLAIN_SENDS or not can_interrupt()
        return self._describe_held(now_ns) if is_tried and over_ns > HELD_NS else None

    def _begin_beside(self) -> None:
        rank = self._rank
        if rank.steps is not None:
            rank.steps.watch(None)
        # Blocked before it is there, and inherited: signals are for the thread that trains.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._began_ns, self._where = monotonic_ns(), BESIDE
            self._ident = -1
            start_new_thread(self._run_beside, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # On the thread that runs it --------------------------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        rank = self._rank
        if get_ident() != rank.owner_ident or self._is_over:
            return
        rank.pace.quiet_until = 0
        if why := why_not_here(rank):
            self._why = why
            return
        if self._turn.is_taken_now():
            self._began_ns, self._where = monotonic_ns(), AT_STEP
            self._run(sys._getframe(1), optimizer)

    def _run_beside(self) -> None:
        try:
            self._run(sys._current_frames().get(self._rank.owner_ident), None)
        except Exception as error:
            self._rank.fail("examination", error)

    def _run(self, frame: Any, optimizer: Any) -> None:
        rank = self._rank
        try:
            names = Names(frame, rank, optimizer)
            parts = [mentioned(code) for code in self._program.codes()]
            wanted = None if None in parts else frozenset().union(*(part for part in parts if part is not None))
            given = names.find(wanted)
            self._told = {
                "step": rank.step_now(),
                "frame": names.place(),
                "names_trouble": names.trouble,
                "ranks": rank.world_size,
            }
            del names, frame  # what they hold would live as long as the code
            settings = Settings(rank.steps.optimizers() if rank.steps is not None else [])
            scope = {**given, "__name__": "guardctl_eval", "__builtins__": sys.modules["builtins"]}
            state = ThreadState(draws=self._where == AT_STEP)
            self._ident = rank.code_ident = get_ident()
            try:
                self._confined.run(scope)
            finally:
                rank.code_ident = 0
                state.put_back()
                if self._confined.sends:  # one may have been raised in what gc calls at the end of a collection
                    rank.words[_GC_SINCE_NS] = 0
            assigned = sorted(
                name for name in given if scope.get(name) is not given[name] and not name.startswith("__")
            )
            self._told["assigned"] = assigned[:MAX_NAMES]
            self._told["changes"] = describe_changes(settings.changes())
        except Exception as error:
            self._told["trouble"] = f"{type(error).__name__}: {error}"[:500]
        finally:
            self._took_ns = monotonic_ns() - self._began_ns
            self._is_done = True
            self._done.release()
        outcome = self._confined.outcome
        try:
            if outcome.signalled is not None:
                raise outcome.signalled
            if outcome.cut is not None:
                signal.raise_signal(outcome.cut)
        except Exception as error:
            rank.passed_on = error
            raise
        finally:
            outcome.signalled = None

    # The answer ------------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        outcome = self._confined.outcome
        return {
            **self._told,
            "outcome": outcome.kind,
            "where": self._where,
            "why_beside": self._why_not() if self._where == BESIDE else "",
            "result": outcome.result if outcome.kind == DONE else "",
            "result_left_out": outcome.result_left_out,
            "error": outcome.error,
            "output": "".join(outcome.output),
            "output_left_out": outcome.output_chars - sum(map(len, outcome.output)),
            "took_s": round(self._took_ns / 1e9, 3),
        }

    def _describe_held(self, now_ns: int) -> dict[str, Any]:
        """It runs on, and nothing ends it."""
        told = self._describe()
        trouble = "" if can_interrupt() else "this Python runs without a GIL, where nothing can be interrupted safely"
        return {**told, "outcome": HELD, "took_s": round((now_ns - self._began_ns) / 1e9, 1), "trouble": trouble}
