"""Times of modules, and memory, for some steps, on a person's request (`guardctl trace`); module_calls.py has how.

torch's global module hooks are put in, and taken out, between two steps, on the thread that trains; never while another
thread is in a module's forward(). They end by themselves: after so many steps, when the room for rows is used up, or
once the time is over. Where no step comes by then, the hooks' thread takes them out: one entry less of a dictionary of
which torch goes through a copy (torch/nn/modules/module.py, _call_impl). Nothing else is changed, but for one function
by which a compiled module looks whether there are such hooks, to warn of them.

dynamo does not ask for hooks that came after it has compiled something, but where compiled modules have hooks of their
own (compiled_guards.py): there nothing is traced. What it compiles while they are there it would compile once more when
they have gone: so they go as soon as it begins, for good.
"""

from __future__ import annotations

import json
import sys
from _thread import allocate_lock, get_ident
from time import monotonic_ns

from guardrun.hooks.examine.compiled_guards import find_obstacle
from guardrun.hooks.examine.memory_in_use import DeviceMemory, ResidentMemory, find_memory
from guardrun.hooks.examine.module_calls import ROW_BYTES, STAGES, ModuleCalls
from guardrun.hooks.examine.module_trees import walk
from guardrun.hooks.examine.step_ends import why_not_here
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.traced import make_passing_hooks
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_SECONDS, MAX_TRACE_BYTES, MAX_TRACED_STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_NAME_CHARS = 200
MAX_NAMED = 8
"""Compiled modules."""
HEAD_BYTES = 4096
"""Of the answer, beside rows and names."""
STEP_BYTES = 32
"""A step's number, and its time."""
_STEP = int(Field.STEP)
WAITING, ON, OVER = "waiting", "on", "over"


class ModuleTimes:
    """One request. Arguments: `steps`; `seconds`, at most; `bytes`, of the answer."""

    def __init__(self, rank: Rank, arguments: Mapping[str, Any]) -> None:
        steps, seconds = int(arguments.get("steps") or 0), float(arguments.get("seconds") or 0.0)
        room = int(arguments.get("bytes") or 0)
        if not 1 <= steps <= MAX_TRACED_STEPS or not 0 < seconds <= MAX_SECONDS:
            raise ValueError(f"1 to {MAX_TRACED_STEPS} steps can be traced, for {MAX_SECONDS:g} seconds at most")
        if not 2 * HEAD_BYTES + STEP_BYTES * steps <= room <= MAX_TRACE_BYTES:
            raise ValueError(f"an answer of {room} bytes is too short, or too long")
        torch = sys.modules.get("torch")
        counter = rank.steps
        if counter is None or torch is None or not hasattr(torch.nn, "Module"):
            raise ValueError("it has not imported torch's optimizers: steps are counted by them")
        if why := find_obstacle():
            raise ValueError(why)
        self._rank, self._torch, self._counter = rank, torch, counter
        self._wanted, self._room = steps, room - HEAD_BYTES - STEP_BYTES * steps
        self.ends_ns = monotonic_ns() + int(seconds * 1e9)
        self._lock = allocate_lock()
        """Held by whoever puts the hooks in, or takes them out for good."""
        self._state = WAITING
        self._why = ""
        self._last_ns = self._last_step = self._closer = 0
        """The end of the last step: when, the board's count, and the id() of its optimizer."""
        self._steps: list[tuple[int, int]] = []
        """Those that were traced, and nanoseconds of each."""
        self._is_compiled = False
        """The hooks went because something was compiled."""
        self._is_whole = False
        """The step under way has been traced from its beginning."""
        self._memory: DeviceMemory | ResidentMemory | None = None
        """None before the first step."""
        self._calls = ModuleCalls(rank, torch, self._room)
        self._hooks = GlobalHooks(torch, self._calls, self._on_compile)
        counter.watch(self._on_step)

    def on_beat(self, now_ns: int) -> dict[str, Any] | None:
        """Have the next step looked at until it is; the answer once it is over."""
        if self._state is not OVER and now_ns >= self.ends_ns:
            if self._state is WAITING and not self._why:
                self._why = "no optimizer's step ended on the thread that trains"
            self.end()
        if self._state is OVER:
            return self._describe()
        if self._state is WAITING or not self._hooks.are_in:
            self._rank.pace.quiet_until = 0
        return None

    def end(self) -> None:
        """Take the hooks out, wherever training is."""
        held = self._lock.acquire(timeout=1.0)  # a forked child may have it from a thread that it does not have
        try:
            self._stop(is_at_step=False)
        finally:
            if held:
                self._lock.release()

    # Between steps, on the thread that trains ----------------------------------------------------------------------

    def _on_step(self, optimizer: Any) -> None:
        if get_ident() != self._rank.owner_ident:
            return
        if self._lock.acquire(False):  # it never waits: whoever has it is about to end all this
            try:
                self._end_step(optimizer)
            finally:
                self._lock.release()

    def _end_step(self, optimizer: Any) -> None:
        rank = self._rank
        if self._state is OVER:
            return
        try:
            torch, calls, now_ns = self._torch, self._calls, monotonic_ns()
            if why := why_not_here(rank):
                self._why = why
                return
            if self._state is WAITING and is_elsewhere(rank.owner_ident):
                self._why = "whenever a step ended, another thread was in a module's forward()"
                return
            if self._is_whole and calls.is_on:
                if id(optimizer) != self._closer and rank.words[_STEP] == self._last_step:
                    return  # of several optimizers: the step goes on
                self._steps.append((calls.step, now_ns - self._last_ns))
            if len(self._steps) >= self._wanted or calls.left_out or calls.trouble or self._is_compiled:
                self._stop(is_at_step=True)
                return
            step = max(rank.step_now(), calls.step) + 1  # of a second training the board does not count the first steps
            calls.end_step(step, is_within=is_within_module(sys._getframe()))
            calls.is_on, self._state, self._is_whole = True, ON, True
            if self._memory is None:
                self._memory = find_memory(torch, rank, optimizer)
                calls.read_allocated = self._memory.read
            if not self._hooks.are_in:
                self._hooks.put_in()
            self._closer, self._last_step, self._last_ns = id(optimizer), rank.words[_STEP], monotonic_ns()
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"[:200]
            self._stop(is_at_step=False)

    def _on_compile(self) -> None:
        self._is_compiled = True
        self._why = "something was compiled before a module had returned"
        self._is_whole = self._calls.is_on = False
        self._hooks.take_out(is_compiling=True)

    def _stop(self, *, is_at_step: bool) -> None:
        if self._state is OVER:
            return
        self._state = OVER
        self._calls.stop(is_at_step=is_at_step)
        self._counter.watch(None)
        self._hooks.take_out()
        if self._memory is not None:
            self._memory.close()

    # The answer ----------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        calls = self._calls
        whole = {step for step, _ in self._steps}
        if calls.trouble or not calls.rows:
            raise ValueError(calls.trouble or self._why or "no module was called")
        names, compiled = name_all(calls)
        room = self._room - sum(len(json.dumps(name)) + 2 for name in names)
        rows = calls.rows[: max(0, room // ROW_BYTES)]
        return {
            "names": names,
            "stages": STAGES,
            "rows": ";".join([" ".join(map(str, row)) for row in rows]),
            "steps": self._steps[-MAX_TRACED_STEPS:],
            "left_out": calls.left_out + len(calls.rows) - len(rows),
            "is_cut": len(whole) < self._wanted,
            "compiled": compiled[:MAX_NAMED],
            "compiled_count": len(compiled),
            "is_compiled": self._is_compiled,
            "memory": self._memory.where if self._memory is not None else "",
        }


# Names -----------------------------------------------------------------------------------------------------------


def name_all(calls: ModuleCalls) -> tuple[list[str], list[str]]:
    """What each module is called by its place, and which of them are compiled.

    By its path in the outermost module that has it, of which the largest one is empty: others begin with their type.
    """
    names: dict[int, str] = {}
    compiled = []
    roots = [root for place in calls.roots if (root := calls.modules[place]()) is not None]
    trees = sorted(((walk(root), root) for root in roots), key=lambda one: -len(one[0]))
    for number, (tree, root) in enumerate(trees):
        prefix = type(root).__name__ if number else ""
        for path, module in tree:
            names.setdefault(id(module), ".".join(part for part in (prefix, path) if part))
    found = []
    for known in calls.modules:
        module = known()
        name = type(module).__name__ if module is not None else "(gone)"
        found.append(names.get(id(module), name)[:MAX_NAME_CHARS])
        is_whole = type(module).__name__ == "OptimizedModule"
        if is_whole or getattr(module, "__dict__", {}).get("_compiled_call_impl") is not None:
            compiled.append(found[-1] or type(module).__name__)
    return found, compiled


def is_within_module(frame: Any) -> bool:
    """Whether a stack, from this frame on, is in the call of a module."""
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and frame.f_globals.get("__name__") == "torch.nn.modules.module":
            return True
        frame = frame.f_back
    return False


def is_elsewhere(owner: int) -> bool:
    """Whether a thread but this one is in the call of a module."""
    return any(is_within_module(frame) for ident, frame in sys._current_frames().items() if ident != owner)


# torch's hooks -------------------------------------------------------------------------------------------------------


class GlobalHooks:
    """Those of all modules: ours, put in and taken out."""

    def __init__(self, torch: Any, calls: ModuleCalls, on_compile: Callable[[], None]) -> None:
        self._module: Any = sys.modules["torch.nn.modules.module"]
        self._enter, self._leave = make_passing_hooks(torch, calls.on_enter, calls.on_leave)
        self._handles: list[Any] = []
        self._has_any: Any = None
        """torch's own function, which ours stands for."""
        self._on_compile = on_compile
        self._callback: Any = None

    @property
    def are_in(self) -> bool:
        """Whether torch calls them."""
        return bool(self._handles)

    def put_in(self) -> None:
        """Have them called, and hear of what is compiled."""
        module = self._module
        if self._callback is None and (handler := find_compilations()) is not None:

            def callback(*args: Any) -> None:
                if self._handles:
                    self._on_compile()

            handler.register_start_callback(callback)
            self._callback = callback
        if self._has_any is None and (original := getattr(module, "_has_any_global_hook", None)) is not None:
            sizes, was = self._sizes(), bool(original())

            def _has_any_global_hook() -> bool:
                # Asked to warn of hooks that are called once more for a compiled module: ours may be.
                ours = len(self._handles) // 2
                others = [size - ours * (place < 2) for place, size in enumerate(self._sizes())]
                return was if others == sizes else bool(original())

            self._has_any, self._stand_in = original, _has_any_global_hook
            module._has_any_global_hook = _has_any_global_hook
        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave),
        ]

    def take_out(self, *, is_compiling: bool = False) -> None:
        """Have them called no more. is_compiling: it is called by what says so, which must not be changed meanwhile."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if is_compiling:
            return
        if self._callback is not None:
            callback, self._callback = self._callback, None
            handler = find_compilations()
            if handler is not None and callback in handler.start_callbacks:
                handler.remove_start_callback(callback)
        if self._has_any is not None:
            original, self._has_any = self._has_any, None
            if self._module._has_any_global_hook is self._stand_in:
                self._module._has_any_global_hook = original

    def _sizes(self) -> list[int]:
        names = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
        return [len(getattr(self._module, f"_global_{name}")) for name in names]


def find_compilations() -> Any:
    """Where dynamo says that it begins to compile; None before it is imported, and where it does not say so."""
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    return handler if hasattr(handler, "register_start_callback") else None
