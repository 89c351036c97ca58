"""What modules give out (`[guards] detect = "deep"`): which output, or gradient, was the first that is not finite.

After each call of a module under gradients a flag is computed of its output, whether all of it is finite, and likewise
of that output's gradient as it comes by: on the device, in order, without waiting for it. They are read when the step
turns out not to be finite, and let go of otherwise. Inner modules come before those that they are part of, so the first
one is the innermost. How much of it is zero is zero_counts.py's.

Nothing is known of what runs as one piece: compiled modules, captured graphs. Never raises; what fails is turned off.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections import deque
from typing import Any

from guardrun.hooks.guards.blank_batches import BlankBatches
from guardrun.hooks.guards.gradient_groups import GradientGroups
from guardrun.hooks.guards.module_names import name_module
from guardrun.hooks.guards.zero_counts import Call, ZeroCounts
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import Function, replace
from guardrun.hooks.traced import make_module_hook
from guardrun.hooks.wire.board import Field

KEPT_STEPS = 16
"""Values of a device are read some steps later."""
MAX_CALLS = 4096
"""Of a step; more are not looked at."""
OUTPUT, GRADIENT = "output", "gradient of the output"
_STEP, _CAPTURES = int(Field.STEP), int(Field.CAPTURES)


class Origin:
    """One rank's. The flags of gradients come from the threads of the backward pass."""

    def __init__(self, rank: Rank, torch: Any) -> None:
        self._rank = rank
        self._torch = torch
        self._steps: deque[tuple[int, list[tuple[Any, str, Any]]]] = deque(maxlen=KEPT_STEPS)
        """Step under way → calls in order: the module, OUTPUT or GRADIENT, its flag."""
        self._zeros: ZeroCounts | None = ZeroCounts(rank, torch)
        """None: it has failed, or has said what there was to say."""
        self._blank: BlankBatches | None = BlankBatches(rank, torch)
        """Likewise."""
        self._groups: GradientGroups | None = GradientGroups(rank, torch)
        """None: it has failed."""

    def on_call(self, module: Any, args: Any, output: Any) -> None:
        """A module has been called (torch's global forward hook). Changes nothing of its output."""
        torch = self._torch
        if not torch.is_grad_enabled() or self._rank.origin is None:
            return
        try:
            if get_ident() != self._rank.owner_ident or self._rank.words[_CAPTURES]:
                return
            if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack():
                return  # somebody counts, records or replays what is called: ours would be among it
            if torch._C._get_tracing_state() is not None:
                return
            calls = self._calls()
            if len(calls) >= MAX_CALLS:
                return
            tensors = _tensors(output, torch)
            calls.append((module, OUTPUT, self._flag(tensors)))
            call = self._count_zeros(module, args, tensors) if self._zeros is not None else None
            if self._blank is not None:
                self._look_at_batch(self._blank, module, args, output)
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self._on_gradient(calls, module, call, gradient))
        except Exception as error:
            self._fail(error)

    def _calls(self) -> list[tuple[Any, str, Any]]:
        step = self._rank.words[_STEP] + 1
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, []))
        return self._steps[-1][1]

    def _count_zeros(self, module: Any, args: Any, tensors: list[Any]) -> Call | None:
        zeros = self._zeros
        assert zeros is not None
        try:
            call = zeros.add(self._rank.words[_STEP] + 1, module, args, tensors)
        except Exception as error:
            self._fail_zeros(error)
            return None
        if zeros.is_over:
            self._zeros = None
        return call

    def _look_at_batch(self, blank: BlankBatches, module: Any, args: Any, output: Any) -> None:
        try:
            blank.add(self._rank.words[_STEP] + 1, module, args, output)
            if blank.is_over:
                self._blank = None
        except Exception as error:
            self._blank = None
            self._rank.fail("blank batches", error)

    def _on_gradient(self, calls: list[tuple[Any, str, Any]], module: Any, call: Call | None, gradient: Any) -> None:
        try:
            if len(calls) < 2 * MAX_CALLS:
                calls.append((module, GRADIENT, self._flag(_tensors(gradient, self._torch))))
        except Exception as error:
            self._fail(error)
        zeros = self._zeros
        if call is None or zeros is None:
            return
        try:
            zeros.add_gradient(call, gradient)
        except Exception as error:
            self._fail_zeros(error)

    def on_gradients(self) -> None:
        """All gradients of a step are there: before they are clipped, or the optimizer steps."""
        groups = self._groups
        if groups is None:
            return
        try:
            groups.on_gradients(lambda: [call[0] for call in self._calls() if call[1] == OUTPUT])
        except Exception as error:
            self._groups = None
            self._rank.fail("gradients", error)

    def _fail_zeros(self, error: Exception) -> None:
        self._zeros = None
        self._rank.fail("zeros", error)

    def _flag(self, tensors: list[Any]) -> Any:
        """Whether all numbers are finite, as a tensor with one element; None where there are none."""
        torch = self._torch
        with torch.no_grad():
            flags = [torch.isfinite(getattr(each, "_local_tensor", each).detach()).all() for each in tensors]
            return None if not flags else flags[0] if len(flags) == 1 else torch.stack(flags).all()

    def describe(self, step: int) -> str:
        """The first that was not finite in a step, as Field.STEP counts; empty: none is known. Waits for the device."""
        try:
            calls = next((calls for known, calls in self._steps if known == step), [])
            for module, what, flag in calls:
                if flag is not None and not bool(flag.item()):
                    return f"the {what} of {name_module(module, [call[0] for call in calls if call[1] == OUTPUT])}"
        except Exception as error:
            self._fail(error)
        return ""

    def _fail(self, error: Exception) -> None:
        self._rank.origin = None
        self._steps.clear()
        self._rank.fail("origins", error)


def _tensors(value: Any, torch: Any) -> list[Any]:
    """The floating-point tensors of an output: itself, or those in a tuple, a list or a dict."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() and not value.is_meta and value.numel() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [each for each in value if isinstance(each, torch.Tensor) and _tensors(each, torch)]
    return []


def _leave_out_ours(original: Function) -> Function:
    @functools.wraps(original)
    def _has_any_global_hook() -> bool:
        module: Any = sys.modules["torch.nn.modules.module"]
        others = (module._global_backward_pre_hooks, module._global_backward_hooks, module._global_forward_pre_hooks)
        return len(module._global_forward_hooks) > 1 or any(others)

    return _has_any_global_hook


def install(module: Any, rank: Rank) -> None:
    """Hear of every module's calls, where the user wants it; torch.nn.modules.module."""
    if rank.settings.get("detect") == "deep":
        torch = sys.modules["torch"]
        rank.origin = Origin(rank, torch)
        module.register_module_forward_hook(make_module_hook(torch, rank.origin.on_call))
        # Compiled modules ask it, to warn that such a hook is called once more for them: ours may be.
        replace(module, "_has_any_global_hook", _leave_out_ours)
