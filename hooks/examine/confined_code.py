"""Runs a person's code in a thread of the script, so that neither it nor its interruption reaches beyond its end.

What it prints is taken in, what it answers and raises becomes text, each up to a bound. What is set for the thread
meanwhile (gradients off, no compiling, what is drawn from generators) is as before afterwards.

Interrupting. Another thread has the interpreter raise `Interrupted` in this one (PyThreadState_SetAsyncExc). That may
be raised at any later moment, so three things keep it from the script's own code:

- It is sent by one call of C functions, which goes through a list of the threads that are inside: no other thread runs
  between the look at that list and the sending. Who leaves takes itself off the list: from then on nothing is sent.
- Who has left has what has been sent, and not yet raised, raised at once, and catches it: there is one at most. To take
  it back (by NULL) would leave CPython 3.11 looking for it at each turn of each loop.
- What is raised between the code's end and that is caught by one of LAYERS calls around it. Each catches one, and there
  are more of them than are ever sent.

It is not sent right where locks are taken, if that passes: other threads would wait for these for good. Nor is anything
sent while a signal's handler of the script's runs there: it may be saving a checkpoint. What was sent before and is
raised in it all the same cuts it short: then the signal is raised once more, behind the code.

Code that catches whatever is raised, in a loop, gets another kind after PLAIN_SENDS: as soon as one of these is caught
it sends the next, which is raised in the handler, or on the way back from it. That, too, is one call of C functions.

Code in C is not interrupted; it ends when it returns to Python.
"""

from __future__ import annotations

import ast
import ctypes
import os
import reprlib
import signal
import sys
import threading
import traceback
from _thread import get_ident
from collections import deque
from functools import partial
from itertools import chain, repeat
from opcode import opmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

FILE = "<guardctl eval>"
"""Where tracebacks say that it is."""
PLAIN_SENDS, MAX_SENDS = 8, 32
MAX_AGAIN = 64
"""Sent by what has been caught."""
LAYERS = MAX_SENDS + MAX_AGAIN + 8
TAKE_LOCKS = frozenset(("importlib._bootstrap", "logging", "queue", "threading"))
"""Modules that may hold a lock between two instructions, outside a `try`: it would never be given back."""
MAX_SPARED = 16
MAX_OUTPUT_CHARS = 32_000
MAX_RESULT_CHARS = 16_000
MAX_ERROR_CHARS = 8_000
DONE, RAISED, INTERRUPTED = "done", "raised", "interrupted"


class Interrupted(BaseException):
    """The time is over."""


_set = ctypes.pythonapi["PyThreadState_SetAsyncExc"]  # our own: the script may have other types for the shared one
_set.argtypes, _set.restype = (ctypes.c_ulong, ctypes.py_object), ctypes.c_int
_again = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_again.argtypes, _again.restype = (ctypes.c_ulong, ctypes.py_object), None


def can_interrupt() -> bool:
    """Whether one call of C functions is one step for all other threads: not without a GIL."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class Program:
    """Code that has been compiled: statements, and an expression at their end, whose value is the answer."""

    def __init__(self, source: str) -> None:
        """Raises SyntaxError, ValueError, RecursionError or MemoryError."""
        tree = ast.parse(source, FILE, "exec")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.statements: CodeType = compile(tree, FILE, "exec", dont_inherit=True)
        self.value: CodeType | None = None
        if last is not None:
            self.value = compile(ast.Expression(last.value), FILE, "eval", dont_inherit=True)  # type: ignore[attr-defined]

    def codes(self) -> list[CodeType]:
        """What is run, in order."""
        return [self.statements] + ([self.value] if self.value is not None else [])

    def run(self, names: dict[str, Any]) -> Any:
        """Raises whatever it does."""
        exec(self.statements, names)
        return eval(self.value, names) if self.value is not None else None


class Outcome:
    """What became of it."""

    def __init__(self) -> None:
        self.kind = INTERRUPTED
        self.result = self.error = ""
        self.result_left_out = 0
        self.output: list[str] = []
        self.output_chars = 0
        """Of all that was printed."""
        self.signalled: BaseException | None = None
        """What a handler of the script's has raised for a signal that came meanwhile: it is the script's."""
        self.cut: int | None = None
        """The signal whose handler an interruption has cut short."""

    def add(self, text: str) -> None:
        """It has printed that."""
        left = MAX_OUTPUT_CHARS - self.output_chars
        self.output_chars += len(text)
        if left > 0:
            self.output.append(text[:left])


class Outlet:
    """Stands for sys.stdout or sys.stderr: what one thread prints is taken in, the others' goes where it always did."""

    def __init__(self, stream: Any, outcome: Outcome) -> None:
        self._stream, self._outcome, self._ident = stream, outcome, get_ident()
        self.is_open = True

    def write(self, text: str) -> Any:
        """As a stream's."""
        if not self.is_open or get_ident() != self._ident:
            return self._stream.write(text)
        self._outcome.add(str(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """As a stream's."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """As a stream's."""
        if not self.is_open or get_ident() != self._ident:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Confined:
    """One program, run once, in one thread."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.outcome = Outcome()
        self.sends = self._spared = 0
        self._inside: list[int] = []
        """The thread that may be interrupted, and is."""
        kinds: list[type[Interrupted]] = []
        sends = map(_again, chain.from_iterable(repeat(self._inside, MAX_AGAIN)), chain.from_iterable(repeat(kinds)))
        # Python makes an object of what is raised no later than when it is caught, in the thread that catches it.
        self._insistent = type("Interrupted", (Interrupted,), {"__init__": staticmethod(partial(next, sends, None))})
        kinds.append(self._insistent)

    def interrupt(self) -> None:
        """Have it interrupted, if it still runs; for another thread. MAX_SENDS times at most; each may be lost."""
        if self.sends < MAX_SENDS and can_interrupt() and not any(map(self._is_spared, list(self._inside))):
            self.sends += 1
            kind = Interrupted if self.sends <= PLAIN_SENDS else self._insistent
            deque(map(_set, self._inside, repeat(kind)), 0)

    def _is_spared(self, ident: int) -> bool:
        """Whether the thread is where an interruption does harm; where locks are taken, for some turns only."""
        frame = sys._current_frames().get(ident)
        if self._spared < MAX_SPARED and frame is not None and frame.f_globals.get("__name__") in TAKE_LOCKS:
            self._spared += 1
            return True
        return handles_signal(ident, frame)

    def run(self, names: dict[str, Any]) -> None:
        """Run it, in this thread; what is to be known of it is in `outcome`. Raises nothing.

        A process that it has forked, and that returns from it, ends here.
        """
        streams = [(name, Outlet(stream, self.outcome)) for name in ("stdout", "stderr") if (stream := _stream(name))]
        for name, outlet in streams:
            setattr(sys, name, outlet)
        try:
            self._layer(LAYERS, names, os.getpid())
        finally:
            for name, outlet in streams:
                outlet.is_open = False
                if getattr(sys, name, None) is outlet:
                    setattr(sys, name, outlet._stream)

    def _layer(self, depth: int, names: dict[str, Any], pid: int) -> None:
        try:
            if depth:
                self._layer(depth - 1, names, pid)
            else:
                self._inside.append(get_ident())
                self._work(names, pid)
                self._settle()
        except BaseException as error:  # an interruption; or a signal's, from wherever it came
            self._settle()
            self._note(error)

    def _note(self, error: BaseException) -> None:
        outcome = self.outcome
        if not isinstance(error, Interrupted) and not is_of_signal(error):
            outcome.error, outcome.kind = describe_error(error), RAISED
            return
        # An interruption may have been raised in a handler, or while what a handler had raised was on its way.
        one: BaseException | None = error
        for _ in range(LAYERS):
            if one is None or outcome.signalled is not None:
                return
            if not isinstance(one, Interrupted):
                outcome.signalled = one if is_of_signal(one) else None
            elif outcome.cut is None:
                outcome.cut = handled_signal(one)
            one = one.__context__

    def _settle(self) -> None:
        """From here on nothing is sent; and what has been is raised here."""
        self._inside.clear()
        if self.sends:
            try:
                _set(get_ident(), Interrupted)
                while True:
                    pass
            except Interrupted:
                pass

    def _work(self, names: dict[str, Any], pid: int) -> None:
        outcome = self.outcome
        try:
            value = self._program.run(names)
        except Interrupted:
            raise
        except BaseException as error:
            self._note(error)
            return
        finally:
            if os.getpid() != pid:  # a child that must not go on to train
                os._exit(0)
        outcome.result, outcome.result_left_out = describe_value(value)
        outcome.kind = DONE


def _stream(name: str) -> Any:
    stream = getattr(sys, name, None)
    return stream if hasattr(stream, "write") else None


# Text ---------------------------------------------------------------------------------------------------------------


LIMITS = {
    **dict.fromkeys(("maxdict", "maxlist", "maxtuple", "maxset", "maxfrozenset", "maxdeque"), 200),
    **dict.fromkeys(("maxstring", "maxother"), MAX_RESULT_CHARS),
    **{"maxlevel": 6, "maxarray": 1000, "maxlong": 400},
}
"""Of reprlib.Repr: how much of what is made into text."""


class _Text(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        vars(self).update(LIMITS)


def describe_value(value: Any) -> tuple[str, int]:
    """As repr() has it, up to a bound, and how many characters were left out (0 where that is not known); None empty.

    Of what is large only the beginning is made into text, but for objects with a repr() of their own.
    """
    if value is None:
        return "", 0
    if isinstance(value, str | bytes | bytearray) and len(value) > MAX_RESULT_CHARS:
        return repr(value[:MAX_RESULT_CHARS])[:MAX_RESULT_CHARS], len(value) - MAX_RESULT_CHARS
    try:
        text = str(_Text().repr(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose repr() raises {type(error).__name__}>"[:MAX_RESULT_CHARS], 0
    return text[:MAX_RESULT_CHARS], max(0, len(text) - MAX_RESULT_CHARS)


def describe_error(error: BaseException) -> str:
    """Its traceback from the code on, the last line in any case."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename != FILE:
        where = where.tb_next
    try:
        lines = traceback.format_exception(type(error), error, where, limit=-20)
        text = "".join(line[:MAX_ERROR_CHARS] for line in lines).rstrip()
    except Exception as why:
        text = f"{type(error).__name__} (which can't be shown: {type(why).__name__})"
    if isinstance(error, SystemExit):
        text += "\n(exit() ends this code, and not the rank)"
    return text if len(text) <= MAX_ERROR_CHARS else f"…{text[-MAX_ERROR_CHARS:]}"


# Signals ------------------------------------------------------------------------------------------------------------


def handlers() -> dict[Any, list[int]]:
    """Code of the script's handlers → their signals."""
    found: dict[Any, list[int]] = {}
    for number in sorted(signal.valid_signals()):
        if (code := _code_of(signal.getsignal(number))) is not None:
            found.setdefault(code, []).append(number)
    return found


def handles_signal(ident: int, frame: Any) -> bool:
    """Whether a thread is in a handler that was called within the code. frame: its innermost. For another thread."""
    if ident != threading.main_thread().ident or not (codes := handlers()):
        return False
    while frame is not None and frame.f_code.co_filename != FILE:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def handled_signal(error: BaseException) -> int | None:
    """The signal whose handler's frame is among those that it has passed."""
    if get_ident() != threading.main_thread().ident:
        return None
    codes = handlers()
    where = error.__traceback__
    while where is not None:
        code = where.tb_frame.f_code
        if code in codes:
            given = [where.tb_frame.f_locals.get(name) for name in code.co_varnames[:2]]
            return next((number for number in codes[code] if number in given), codes[code][0])
        where = where.tb_next
    return None


def is_of_signal(error: BaseException) -> bool:
    """Whether a handler has raised it for a signal to this process, and not the code itself.

    KeyboardInterrupt has no handler's frame where it is Python's own.
    """
    if get_ident() != threading.main_thread().ident:
        return False
    if handled_signal(error) is not None:
        return True
    where = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or where is None:
        return False
    while where.tb_next is not None:
        where = where.tb_next
    code, at = where.tb_frame.f_code, where.tb_lasti
    is_raised_here = code.co_filename == FILE and code.co_code[at] == opmap["RAISE_VARARGS"]
    return not is_raised_here


def _code_of(handler: Any) -> Any:
    for name in ("func", "__func__"):
        handler = getattr(handler, name, handler)
    if not hasattr(handler, "__code__") and callable(handler):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


# The thread's own state ---------------------------------------------------------------------------------------------


class ThreadState:
    """What torch keeps for a thread, and generators of random numbers: as it was, whatever runs in between."""

    def __init__(self, *, draws: bool) -> None:
        """From here on no gradients are recorded, and nothing is compiled. draws: what is drawn is put back as well."""
        torch: Any = sys.modules.get("torch")
        self._undo: list[Callable[[], object]] = []
        if draws:
            self._keep_generators(torch)
        core: Any = getattr(torch, "_C", None)
        if hasattr(core, "_set_grad_enabled"):
            was = bool(torch.is_grad_enabled())
            core._set_grad_enabled(False)
            self._undo.append(lambda: core._set_grad_enabled(was))
        frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
        if frames is not None:
            callback = frames.set_eval_frame(None)
            if callback is not None:
                self._undo.append(lambda: frames.set_eval_frame(callback))

    def put_back(self) -> None:
        """Once."""
        while self._undo:
            self._undo.pop()()

    def _keep_generators(self, torch: Any) -> None:
        plain: Any = sys.modules.get("random")
        if hasattr(plain, "getstate"):
            state = plain.getstate()
            self._undo.append(lambda: plain.setstate(state))
        numpys: Any = getattr(sys.modules.get("numpy.random"), "mtrand", None)
        if hasattr(numpys, "get_state"):
            numbers = numpys.get_state()
            self._undo.append(lambda: numpys.set_state(numbers))
        generators: list[Any] = []
        if hasattr(torch, "default_generator"):
            generators.append(torch.default_generator)
            cuda: Any = getattr(torch, "cuda", None)
            if getattr(cuda, "_initialized", False):
                generators += list(cuda.default_generators)
        for generator in generators:
            self._keep_generator(torch, generator)

    def _keep_generator(self, torch: Any, generator: Any) -> None:
        before = generator.get_state()

        def put_back() -> None:
            if not torch.equal(generator.get_state(), before):
                generator.set_state(before)

        self._undo.append(put_back)
