"""What steps and waits for other ranks take on the device, where the host does not wait (`[slowdown] device_timing`).

With NCCL the host launches and goes on, so its clock knows nothing of who waits for whom. Events on the stream that
trains do: a pair around each step, and one around whatever makes that stream wait for other ranks. The rank whose pairs
are shortest arrives last.

    collectives that run in that stream (Megatron's, TP's), Work.wait (pipelines, async_op=True)    wrap()
    functional collectives (DTensor)                                                                wait_tensor
    FSDP, FSDP2: where the gathered parameters, and at the end the reduced gradients, are needed    its own waits

A collective in a stream of its own (FSDP's) is not timed: it is ahead of the computation, and long for everybody but
the last one, however little that one is late. What counts is how long the computation stands still for it.

- Nothing is ever waited for: a step is read once its last event is done, in the thread that trains, after a step.
- It costs a SHARE of a step at most: so many steps are left out for each that is timed.
- At most MAX_EVENTS exist; they are used again. A step that needs more is none that is timed.
- While a CUDA graph is captured nothing is recorded or asked.
- Whatever fails turns it off for good, which is said once.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections import deque
from inspect import isfunction
from time import monotonic_ns
from typing import Any

from guardrun.hooks.patches.steps import ODD
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.rank.sharded_state import ShardedModules
from guardrun.hooks.saves.checkpoint_files import Function, replace
from guardrun.hooks.wire.board import Field

SHARE = 0.002
"""Of a step's time, that timing may cost the host."""
MAX_EVERY = 1000
MAX_EVENTS = 16_384
MAX_WAITING = 16
"""Steps that the host is ahead of the device and that are timed; those after them are not."""
MAX_FULL = 3
"""Steps in a row that need too many events: it is not tried again."""
LOOK_EVERY = 50
"""Steps, until a device is in use."""

_DATA_TOTAL, _GC_TOTAL = int(Field.DATA_TOTAL_NS), int(Field.GC_TOTAL_NS)


class TimedStep:
    """A step's events, in the order of their stream."""

    def __init__(self, first: Any, data_ns: int, gc_ns: int) -> None:
        self.first = first
        self.last: Any = None
        self.pairs: list[tuple[Any, Any]] = []
        """Around waits for other ranks."""
        self.data_ns = data_ns
        self.gc_ns = gc_ns
        self.cost_ns = 0
        """Of the host's time."""
        self.is_full = False


class DeviceTimer:
    """Times one rank's steps. on_step() and pop_sums() are for the thread that trains; waits are timed in any."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._torch: Any = None
        """None until a device is in use."""
        self._kind = ""
        self._is_capturing: Any = None
        self.is_off = False
        self._stream = -1
        """Id of the one in which the step that is timed began."""
        self._step: TimedStep | None = None
        self._waiting: deque[TimedStep] = deque()
        self._free: list[Any] = []
        self._made = 0
        self._inside: set[int] = set()
        """Threads that are within a wait: what that calls is part of it."""
        self._every = 1
        self._left_out = LOOK_EVERY
        """Steps since one was timed; since a device was looked for."""
        self._full = 0
        self._limit_ns = 0
        self._sums = [0, 0, 0, 0, 0]
        """Steps, and what they took, waited, waited for data, collected."""
        self.has_seen_waits = False

    def stop(self) -> None:
        """Time nothing more."""
        self.is_off, self._step = True, None

    def pop_sums(self) -> list[int]:
        """Sums since the last time: steps, and nanoseconds that they took, waited, waited for data, collected."""
        sums, self._sums = self._sums, [0, 0, 0, 0, 0]
        if sums[0]:
            self._limit_ns = ODD * sums[1] // sums[0]
        return sums

    # Steps -------------------------------------------------------------------------------------------------------

    def on_step(self) -> bool:
        """A step is done, and the next begins. False where the device is not timed. Never raises."""
        if self.is_off:
            return False
        try:
            if self._torch is None and not self._find_device():
                return False
            if self._is_capturing is not None and self._is_capturing():
                self._step = None
                return True
            began_ns = monotonic_ns()
            step, self._step = self._step, None
            if step is not None:
                self._end(step)
            if self._waiting:
                self._read()
            self._left_out += 1
            if self._left_out >= self._every and len(self._waiting) < MAX_WAITING:
                self._begin(began_ns)
        except Exception as error:
            self._fail(error)
        return not self.is_off

    def _begin(self, began_ns: int) -> None:
        first = self._event()
        if first is None:
            return
        self._left_out = 0
        words = self._rank.words
        step = TimedStep(first, words[_DATA_TOTAL], words[_GC_TOTAL])
        self._stream = self._torch.accelerator.current_stream().stream_id
        first.record()
        step.cost_ns = monotonic_ns() - began_ns
        self._step = step

    def _end(self, step: TimedStep) -> None:
        last = None if step.is_full else self._event()
        if last is None:
            # What it used may still be under way: it is recorded anew only when it is used again, which is no harm.
            self._give_back(step)
            self._full += 1
            if self._full >= MAX_FULL and not self._waiting:
                raise RuntimeError(f"a step waits more than {MAX_EVENTS // 2} times for other ranks")
            return
        self._full = 0
        words = self._rank.words
        step.data_ns = words[_DATA_TOTAL] - step.data_ns
        step.gc_ns = words[_GC_TOTAL] - step.gc_ns
        last.record()
        step.last = last
        self._waiting.append(step)

    def _read(self) -> None:
        """Sum up the steps that the device has done."""
        while self._waiting and self._waiting[0].last.query():
            began_ns = monotonic_ns()
            step = self._waiting.popleft()
            took_ns = int(1e6 * step.first.elapsed_time(step.last))
            waited_ns = int(sum(1e6 * first.elapsed_time(last) for first, last in step.pairs))
            self._give_back(step)
            cost_ns = step.cost_ns + monotonic_ns() - began_ns
            every = 1 + int(cost_ns / (SHARE * max(took_ns, 1)))
            self._every = min(every, 2 * self._every, MAX_EVERY)  # once, chance may have cost it much
            if took_ns > self._limit_ns:
                self._limit_ns = 2 * self._limit_ns if self._limit_ns else 1 << 62
                self._sums = [0, 0, 0, 0, 0]
                continue
            self.has_seen_waits = self.has_seen_waits or bool(step.pairs)
            parts = (1, took_ns, min(waited_ns, took_ns), step.data_ns, step.gc_ns)
            self._sums = [before + part for before, part in zip(self._sums, parts, strict=True)]

    # Waits -------------------------------------------------------------------------------------------------------

    def wrap(self, original: Function) -> Function:
        """Have a function that makes the current stream wait for other ranks timed; half a microsecond where it isn't.

        What returns a handle at once (async_op) is left alone: waiting for that is timed.
        """

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            step = self._step
            if step is None or kwargs.get("async_op"):
                return original(*args, **kwargs)
            first = self._enter(step)
            if first is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self._leave(step, first)

        if isfunction(original):
            timed._torchdynamo_inline = original  # type: ignore[attr-defined]  # dynamo's own convention
        return timed

    def _enter(self, step: TimedStep) -> Any:
        """The event before a wait; None where it is not timed."""
        if get_ident() in self._inside or step.is_full:
            return None
        try:
            began_ns = monotonic_ns()
            if self._torch.accelerator.current_stream().stream_id != self._stream:
                return None
            if self._is_capturing is not None and self._is_capturing():
                return None
            first = self._event()
            if first is None:
                step.is_full = True
                return None
            first.record()
            self._inside.add(get_ident())
            step.cost_ns += monotonic_ns() - began_ns
            return first
        except Exception as error:
            self._fail(error)
            return None

    def _leave(self, step: TimedStep, first: Any) -> None:
        self._inside.discard(get_ident())
        if self.is_off:
            return
        try:
            began_ns = monotonic_ns()
            last = self._event()
            step.is_full = step.is_full or last is None
            if last is None or self._step is not step:
                # Of a thread that does not train: it may have waited for longer than the step took.
                self._free.extend(event for event in (first, last) if event is not None)
                return
            last.record()
            step.pairs.append((first, last))
            step.cost_ns += monotonic_ns() - began_ns
        except Exception as error:
            self._fail(error)

    # Events ------------------------------------------------------------------------------------------------------

    def _find_device(self) -> bool:
        """Whether a device is in use by now: it must not be us who make its context."""
        self._left_out += 1
        if self._left_out <= LOOK_EVERY:
            return False
        self._left_out = 0
        torch = sys.modules["torch"]
        found = torch.accelerator.current_accelerator()  # raises AttributeError before torch 2.6
        module = None if found is None else getattr(torch, found.type)
        if module is None or not module.is_initialized():
            return False
        self._kind = found.type
        self._is_capturing = getattr(module, "is_current_stream_capturing", None)
        self._torch = torch
        return True

    def _event(self) -> Any:
        """One that is free; None where there are too many."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        if self._made >= MAX_EVENTS:
            return None
        self._made += 1
        return self._torch.Event(self._kind, enable_timing=True)

    def _give_back(self, step: TimedStep) -> None:
        self._free.append(step.first)
        if step.last is not None:
            self._free.append(step.last)
        for pair in step.pairs:
            self._free.extend(pair)

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._rank.fail("device timing", error)


# Who waits --------------------------------------------------------------------------------------------------------

FSDP2 = {
    "FSDPParamGroup": ("wait_for_unshard",),
    "FSDPState": ("_root_post_backward_final_callback",),
}
FSDP1 = ("_pre_forward_unshard", "_pre_backward_hook", "_post_backward_final_callback")
"""Each makes the computation wait for a stream of FSDP's, and computes next to nothing itself."""


def install_fsdp2(module: Any, rank: Rank) -> None:
    """torch.distributed.fsdp._fully_shard: modules _fsdp_param_group and _fsdp_state."""
    if (kind := getattr(module, "FSDPState", None)) is not None and module.__name__.endswith("_fsdp_state"):
        replace(kind, "init", functools.partial(_note_sharded, rank=rank))
    if rank.device_timer is None:
        return
    for name, methods in FSDP2.items():
        kind = getattr(module, name, None)
        for method in methods:
            replace(kind, method, rank.device_timer.wrap)


def _note_sharded(original: Any, rank: Rank) -> Any:
    """fully_shard() was called with these."""

    @functools.wraps(original)
    def init(state: Any, modules: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            rank.sharded = rank.sharded or ShardedModules()
            rank.sharded.add(modules)
        except Exception as error:
            rank.fail("sharded modules", error)
        return original(state, modules, *args, **kwargs)

    return init


def install_fsdp1(module: Any, rank: Rank) -> None:
    """torch.distributed.fsdp._runtime_utils."""
    if rank.device_timer is not None:
        for name in FSDP1:
            replace(module, name, rank.device_timer.wrap)
