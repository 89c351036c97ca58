"""Which modules are called in a step, for how long, and how much memory there is at the end of each call.

Forward: from torch's global hook before a module's forward() to the one after it, on this thread's clock. Backward: no
module is wrapped for it (torch's own backward hooks put a function around inputs and outputs, whose views cannot be
written in place any more). A hook on a tensor changes neither the tensor nor its graph:

    begins      the gradient of one of the module's outputs is there
    ends        that of all its inputs is; where none is seen (a first layer, arguments by name, an input that is
                written over in place): the next gradient is there of an output that is neither of its parts nor of
                what it is part of, or the pass is over

so that modules that have one input in common (a query, a key and a value) end together. What a checkpoint computes once
more is a stage of its own, within the backward pass of what was checkpointed.

The clock is the host's: on a device, it shows what it takes to launch the work, or to wait for it, and not the work.
Each call costs some microseconds, which the modules around it have on their account, too.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guardrun.hooks.rank.rank import Rank

STAGES = ("forward", "backward", "recompute")
FORWARD, BACKWARD, RECOMPUTE = range(3)
ROW_BYTES = 56
"""Of a row, as JSON at most: five numbers of a time and a memory that fit a computer."""
NAME_BYTES = 48
"""A module's name, more or less."""
MAX_TENSORS = 16
"""Of a call's inputs, or outputs, that are looked at; …"""
MAX_DEPTH = 3
"""… as deep in tuples and dictionaries."""
MAX_STACK = 1000

Row = tuple[int, int, int, int, int]
"""Step, the module's place in the list of names, its stage's in STAGES, nanoseconds, bytes (-1: not known)."""


class Call:
    """One call of a module that is under way, or whose gradients are to come."""

    __slots__ = ("allocated", "began_ns", "ended_ns", "is_written", "left", "module", "outer", "place", "step")

    def __init__(self, module: Any, place: int, outer: Call | None, step: int) -> None:
        self.module: Any = module
        """None once it has returned."""
        self.place = place
        self.outer = outer
        """The call that it is part of."""
        self.step = step
        self.left = 0
        """Inputs whose gradients are to come."""
        self.began_ns = self.ended_ns = 0
        """Of forward(), and then of the backward pass; 0: not yet."""
        self.allocated = -1
        self.is_written = False

    def is_within(self, other: Call) -> bool:
        """Whether it is a part of the other one, or that one itself."""
        one: Call | None = self
        while one is not None and one is not other:
            one = one.outer
        return one is not None


class Pass:
    """A backward pass that is under way."""

    __slots__ = ("begun", "open")

    def __init__(self) -> None:
        self.begun: list[Call] = []
        self.open: list[Call] = []
        """Of those, the ones that have not ended, for all that is known."""


class ModuleCalls:
    """Records one rank's, for some steps. Threads: the one that trains, and those of its backward passes."""

    def __init__(self, rank: Rank, torch: Any, room: int) -> None:
        """room: bytes for rows and names."""
        self._rank = rank
        self._torch = torch
        self._room = room
        self.read_allocated: Callable[[], int] = lambda: -1
        """Bytes; -1: not known."""
        self.is_on = False
        self.step = 0
        """The one under way."""
        self.rows: list[Row] = []
        self.left_out = 0
        """Rows that there was no room for."""
        self.modules: list[weakref.ref[Any]] = []
        """By place; …"""
        self._places: dict[int, int] = {}
        """… that of each, by its id()."""
        self.roots: list[int] = []
        """Places of those that were called by no module."""
        self.stacks: dict[int, list[Call]] = {rank.owner_ident: []}
        """Per thread: calls under way, the outermost first."""
        self._passes: dict[int, Pass] = {}
        """By torch's number of a backward pass."""
        self._handles: list[Any] = []
        self.trouble = ""

    def end_step(self, step: int, *, is_within: bool) -> None:
        """The training thread has done a step; the one that follows has this number. is_within: a forward() goes on."""
        self.step = step
        self._passes.clear()
        own = self.stacks[self._rank.owner_ident]
        if not is_within or len(own) > MAX_STACK:
            self.stacks = {self._rank.owner_ident: []}

    def stop(self, *, is_at_step: bool) -> None:
        """Record no more, and take hooks away from tensors that are still there: at a step's end."""
        self.is_on = False
        handles, self._handles = self._handles, []
        if is_at_step:
            for handle in handles:
                handle.remove()
        self._passes.clear()
        self.stacks = {self._rank.owner_ident: []}

    # Forward -------------------------------------------------------------------------------------------------------

    def on_enter(self, module: Any, args: Any) -> None:
        """A module is about to be called."""
        if not self.is_on:
            return
        try:
            stack = self._stack()
            torch = self._torch
            if stack is None or torch._C._get_tracing_state() is not None:
                return
            if not stack:
                self._rank.pace.quiet_until = 0  # this step's end is to be heard of
            call = Call(module, self._place(module, stack), stack[-1] if stack else None, self.step)
            if torch.is_grad_enabled() and self._may_hook():
                for tensor in _tensors(args, torch, []):
                    self._hook_input(call, tensor)
            stack.append(call)
            call.began_ns = monotonic_ns()
        except Exception as error:
            self._fail(error)

    def on_leave(self, module: Any, args: Any, output: Any) -> None:
        """It has returned."""
        if not self.is_on:
            return
        now_ns = monotonic_ns()
        try:
            stack = self.stacks.get(get_ident())
            if not stack:
                return
            at = len(stack) - 1
            while at >= 0 and stack[at].module is not module:
                at -= 1  # a call that raised has not returned
            if at < 0:
                return
            call = stack[at]
            del stack[at:]
            torch = self._torch
            stage = FORWARD if torch._C._current_graph_task_id() == -1 else RECOMPUTE
            self._write(call, stage, now_ns - call.began_ns, self.read_allocated())
            call.module, call.began_ns = None, 0
            if torch.is_grad_enabled() and self._may_hook():
                for tensor in _tensors(output, torch, []):
                    self._hook_output(call, tensor)
        except Exception as error:
            self._fail(error)

    def _stack(self) -> list[Call] | None:
        ident = get_ident()
        stack = self.stacks.get(ident)
        if stack is None and self._torch._C._current_graph_task_id() in self._passes:
            stack = self.stacks[ident] = []  # a device's thread, which computes a checkpoint's part once more
        return stack

    def _place(self, module: Any, stack: list[Call]) -> int:
        place = self._places.get(id(module))
        if place is None or self.modules[place]() is not module:
            place = self._places[id(module)] = len(self.modules)
            self.modules.append(weakref.ref(module))
            self._room -= NAME_BYTES
            if not stack:
                self.roots.append(place)
        return place

    def _write(self, call: Call, stage: int, took_ns: int, allocated: int) -> None:
        self._room -= ROW_BYTES
        if self._room < 0:
            self.left_out += 1
        else:
            self.rows.append((call.step, call.place, stage, took_ns, allocated))

    # Backward ------------------------------------------------------------------------------------------------------

    def _may_hook(self) -> bool:
        """Whether nobody looks at what is called: who records or replays it, or differentiates functions."""
        c = self._torch._C
        return self._room > 0 and c._functorch.peek_interpreter_stack() is None and not c._len_torch_dispatch_stack()

    def _hook_input(self, call: Call, tensor: Any) -> None:
        with self._torch._C.DisableTorchFunction():
            if not tensor.requires_grad or tensor.is_leaf:  # a leaf outlives the step, and so would the hook
                return
            call.left += 1
            self._handles.append(tensor.register_hook(lambda gradient: self._on_input(call)))

    def _hook_output(self, call: Call, tensor: Any) -> None:
        with self._torch._C.DisableTorchFunction():
            if tensor.requires_grad and not tensor.is_leaf:
                self._handles.append(tensor.register_hook(lambda gradient: self._on_output(call)))

    def _on_output(self, call: Call) -> None:
        if not self.is_on or call.began_ns:
            return
        try:
            now_ns = monotonic_ns()
            under_way = self._pass()
            call.began_ns = now_ns
            still = [call]
            for one in under_way.open:
                if one.ended_ns:
                    continue
                if call.is_within(one) or one.is_within(call):
                    still.append(one)
                    continue
                one.ended_ns, one.allocated = now_ns, self.read_allocated()
                if not one.left:
                    self._write_backward(one)
            under_way.open = still
            under_way.begun.append(call)
        except Exception as error:
            self._fail(error)

    def _on_input(self, call: Call) -> None:
        if not self.is_on or not call.began_ns or call.is_written or call.module is not None:
            return
        try:
            call.left -= 1
            call.ended_ns = monotonic_ns()
            call.allocated = self.read_allocated()
            if call.left <= 0:
                self._write_backward(call)
        except Exception as error:
            self._fail(error)

    def _pass(self) -> Pass:
        number = self._torch._C._current_graph_task_id()
        found = self._passes.get(number)
        if found is None:
            found = self._passes[number] = Pass()
            self._torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_pass(number))
        return found

    def _end_pass(self, number: int) -> None:
        under_way = self._passes.pop(number, None)
        if under_way is None or not self.is_on:
            return
        try:
            now_ns = monotonic_ns()
            for call in under_way.begun:
                if call.is_written:
                    continue
                if not call.ended_ns:
                    call.ended_ns, call.allocated = now_ns, self.read_allocated()
                self._write_backward(call)
        except Exception as error:
            self._fail(error)

    def _write_backward(self, call: Call) -> None:
        call.is_written = True
        self._write(call, BACKWARD, call.ended_ns - call.began_ns, call.allocated)

    def _fail(self, error: Exception) -> None:
        self.is_on = False
        self.trouble = f"{type(error).__name__}: {error}"[:200]


def _tensors(value: Any, torch: Any, found: list[Any], depth: int = 0) -> list[Any]:
    """The tensors of arguments, or of an output: in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        if len(found) < MAX_TENSORS:
            found.append(value)
    elif isinstance(value, dict | list | tuple) and depth < MAX_DEPTH:
        # A dictionary of a script's own may make its values when it is asked for them.
        for each in list(dict.values(value) if isinstance(value, dict) else value)[:MAX_TENSORS]:
            _tensors(each, torch, found, depth + 1)
    return found
