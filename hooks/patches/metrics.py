"""What each step of training computes: its loss and its gradients' norm, read without waiting for a device.

The loss is the tensor on which backward() is called: the sum, where a step calls it several times, as scripts divide
what they accumulate; without the factor of a GradScaler. The norm is what clip_grad_norm_ returns, torch's or FSDP's.
Where the script says them (hooks.metrics), that counts instead. A step that a GradScaler leaves out has a record of its
own, since no optimizer steps in it.

A step ends when an optimizer steps; with several, when the same one does as the last time, so that the losses of all
are summed up (a GAN's). One that steps twice meanwhile takes its place: another model is trained, or another fold.

Values on the host are read at once. Those on a device are copied to pinned memory in the stream that computes them, and
read once an event says that they are there (hooks/patches/device_values.py): a record may be written steps later, with
its own number. One step in so many is left out where copies would cost more than a share of it.

So it is on the host, where steps are short. Reading a loss and writing it down takes 5 µs where nothing else runs, and
50 in the middle of training, which has taken the caches: of steps of 5 ms that is a per cent. So of steps shorter than
SHORT_NS, once there were ALL_READ, one in two, four, … is read, so that one is in READ_NS. Which, follows from the
board's count of pulses, so that ranks read the same ones. With several optimizers, or a GradScaler, all are read. What
was read of short steps is written down KEPT at a time, and at once where it is not finite.

Only the training thread calls what is here; nothing raises, and what fails three times is turned off.

One module, as a step passes through all of it within microseconds, in the training thread.
"""

from __future__ import annotations

import functools
import os
import struct
import weakref
from _thread import get_ident
from collections import deque
from inspect import isfunction
from math import isnan, nan, sqrt
from time import monotonic_ns
from typing import Any

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.guards.gradient_groups import wrap_clip
from guardrun.hooks.guards.step_guard import step_guard
from guardrun.hooks.patches.device_values import DeviceValues, NoRoom, Value
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import Function, replace
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.metrics_page import (
    HEAD_WORDS,
    MAGIC,
    MAX_RECORDS,
    NONFINITE,
    RECORD_WORDS,
    SIZE_BYTES,
    Flag,
    Head,
    Record,
    metrics_name,
)

MAX_FAILURES = 3
MAX_VALUES = 1000
"""Of a step. More are none of one step: its end is not seen."""
ALL_READ = 100
"""Steps, at the start."""
SHORT_NS, READ_NS = 10_000_000, 20_000_000
VALUES = 4
"""Of a step: those that have more (micro batches) are short sooner."""
MAX_EVERY = 16
KEPT, KEPT_NS = 16, 500_000_000
"""Steps that are written down together, and how long the first of them may wait."""
MAX_WAITING = 64
"""Steps whose values are on their way from a device; those after them are not read."""

# Plain integers: indexing with an enum's member costs twice as much.
_STEP, _BATCHES, _PULSES = int(Field.STEP), int(Field.BATCHES), int(Field.PULSES)
_LOSS, _NORM, _SKIPPED = int(Flag.LOSS), int(Flag.GRAD_NORM), int(Flag.SKIPPED)
_NONFINITE = int(NONFINITE)
_LEFT_OUT, _BAD_GRADIENTS, _FAR = int(Flag.LEFT_OUT), int(Flag.BAD_GRADIENTS), int(Flag.FAR)
_RECORDS, _HEAD_SKIPPED, _HEAD_LEFT_OUT = int(Head.RECORDS), int(Head.SKIPPED), int(Head.LEFT_OUT)
_TAIL = int(Record.TAIL)
_BODY = struct.Struct("<qddqqqq")
"""A record from STEP on."""
_LAST = struct.Struct("<qqd")
"""The header from RECORDS on to LEARNING_RATE."""


class StepValues:
    """Of one step: what is known so far."""

    __slots__ = ("batch", "guarded", "is_short", "losses", "norms", "overflow", "step")

    def __init__(self) -> None:
        self.losses: list[Value] = []
        self.norms: list[Value] = []
        self.overflow: list[Value] = []
        """Of a fused optimizer: not 0 where it has left the step out itself."""
        self.is_short = False
        """There was no room for one of its values: the others are not all of it."""
        self.guarded = 0
        """Flags of a step that guardrun leaves out."""
        self.step = self.batch = 0

    def are_here(self) -> bool:
        """Whether all can be read."""
        return all(
            isinstance(value, float) or value.is_here()
            for values in (self.losses, self.norms, self.overflow)
            for value in values
        )


class Metrics:
    """One rank's."""

    def __init__(self, rank: Rank, tensor: Any = None) -> None:
        """tensor: torch's type."""
        self._rank = rank
        self._tensor: Any = tensor
        self._page: SharedPage | None = None
        """The page, once there is something to write."""
        self._values = StepValues()
        self._waiting: deque[StepValues] = deque()
        self._devices = DeviceValues(rank)
        self._unscaled: tuple[int, Any] | None = None
        """The id() of a loss that a GradScaler has multiplied, and what it was before."""
        self.is_inside = False
        """A call that is seen is under way: what it calls is part of it."""
        self.mask = 0
        """Steps are read at whose end the board's count of pulses has none of these bits."""
        self.is_due = False
        """Whatever the mask says, the step under way is written down."""
        self._kept: list[StepValues] = []
        """Steps that are to be written down."""
        self._keeps = 1
        """So many of them."""
        self._last_read = (0, 0)
        """That count, and the time, at the end of the last step that was read."""
        self._is_spaced = True
        """Steps need not all be read: one optimizer ends each of them, and no GradScaler leaves any out."""
        self._learning_rate = nan
        self._skipped = self._unread = 0
        self._failures = 0
        self._is_odd = False
        """The last step was not finite."""
        self._closer: weakref.ref[Any] | None = None
        """The optimizer that ends a step; …"""
        self._others: set[int] = set()
        """… and the id() of each other one that has stepped since it has."""
        self._has_optimizer = False
        """One has stepped since the script last said that a step is done."""
        self._said = 0
        """Flags of what the script says itself."""
        self.clipped: list[Any] = []
        """What clip_grad_norm_ has returned since the last step, two at most; for the guard of steps."""

    # What is seen --------------------------------------------------------------------------------------------------

    def see_loss(self, tensor: Any) -> None:
        """backward() is called on it, in a step that is read."""
        trail = self._rank.trail
        if trail is not None:
            trail.on_backward()
        if self._said & _LOSS:
            return
        unscaled, self._unscaled = self._unscaled, None
        if unscaled is not None and unscaled[0] == id(tensor):
            tensor = unscaled[1]
        values = self._values
        try:
            if type(tensor) is self._tensor and tensor.is_cpu and not tensor.ndim:  # else it is looked at more closely
                value = tensor.tolist()  # item()'s number, for half the cost
                if type(value) is float and len(values.losses) < MAX_VALUES:
                    values.losses.append(value)
                    return
        except Exception:  # a mode of the script's may do anything; then it is looked at more closely, too
            pass
        self._add(values, values.losses, tensor)

    def see_scaled(self, before: Any, after: Any) -> None:
        """A GradScaler has multiplied a loss: steps may be left out, which are all told."""
        if before is after:  # it is turned off
            return
        if self._is_spaced:
            self.read_all()
        try:
            if hasattr(before, "detach") and hasattr(after, "detach"):
                self._unscaled = id(after), before.detach()  # which keeps no graph alive
        except Exception as error:
            self._fail(error)

    def see_norm(self, tensor: Any) -> None:
        """clip_grad_norm_ has returned it."""
        if self._rank.guard is not None and len(self.clipped) < 2:
            self.clipped.append(tensor)
        if not self._said & _NORM and not (self._rank.pace.pulses + 1) & self.mask:
            # A sharded one (DTensor) is this rank's part of it.
            self._add(self._values, self._values.norms, getattr(tensor, "_local_tensor", tensor))

    def note_said(self, loss: Any, grad_norm: Any) -> None:
        """The script says them: of the step under way, or of the last one where nothing was computed since its end."""
        said = StepValues()
        for flag, values, given in ((_LOSS, said.losses, loss), (_NORM, said.norms, grad_norm)):
            if given is not None:
                self._said |= flag
                self._add(said, values, getattr(given, "_local_tensor", given))
        if said.losses or said.norms:
            self.read_all_now()
            self._end(said, self._rank.words[_STEP] + (self._rank.pace.began == self._rank.pace.pulses))

    # Steps ---------------------------------------------------------------------------------------------------------

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped, of a step that is read."""
        if get_ident() != self._rank.owner_ident:
            return
        try:
            self._has_optimizer = True
            self._see_rate(optimizer)
            overflow = getattr(optimizer, "found_inf", None)
            if overflow is not None:
                self._add(self._values, self._values.overflow, overflow)
            if self._ends_step(optimizer):
                read = [*self._kept, self._values]
                self._close(self._rank.words[_STEP] + self._rank.counts_itself)
                if self._rank.pace.pulses > ALL_READ and self._is_spaced:
                    self._space(read)
        except Exception as error:
            self._fail(error)

    def on_left_out(self, optimizer: Any) -> None:
        """A GradScaler has left out an optimizer's step."""
        if get_ident() == self._rank.owner_ident and self._ends_step(optimizer):
            self._values.overflow = [1.0]
            self._close(self._rank.words[_STEP] + 1)

    def on_guarded(self, *, is_own: bool, is_far: bool) -> None:
        """A step is left out by us. is_own: gradients of this rank are not finite; is_far: their norm is far off."""
        self.is_due = True
        self._values.guarded |= _LEFT_OUT | (_BAD_GRADIENTS if is_own else 0) | (_FAR if is_far else 0)

    def on_plain(self, optimizer: Any, step: int) -> bool:
        """Keep what was read of a step, where steps are short: several are written down together.

        False where it is not only losses and norms on the host: on_optimizer has to hear of it.
        """
        if self._keeps < 2 or self._unscaled is not None:
            return False
        values, total = self._values, 0.0
        for each in values.losses + values.norms:
            if type(each) is not float:
                return False
            total += each
        if not values.losses or values.guarded or values.overflow or values.is_short:
            return False
        values.step, values.batch = step, self._rank.words[_BATCHES]
        self._kept.append(values)
        self._values = StepValues()
        if len(self._kept) >= self._keeps or total - total != 0.0:
            self._see_rate(optimizer)
            self._space(self._kept)
            self.flush()
        return True

    def flush(self) -> None:
        """Write down what is kept."""
        kept, self._kept = self._kept, []
        for values in kept:
            try:
                self._write(values)
            except Exception as error:
                self._fail(error)

    def _see_rate(self, optimizer: Any) -> None:
        rate = optimizer.param_groups[0]["lr"]
        if type(rate) is float:  # a tensor may be on a device
            self._learning_rate = rate

    def read_all_now(self) -> None:
        """Steps are read from the one under way on, until it is known how short they are."""
        self.mask = self._rank.pace.quiet_until = 0
        self._keeps = 1

    def read_all(self) -> None:
        """There are several optimizers, or a GradScaler: from now on every step is read, and written down at once."""
        self._is_spaced = False
        self.read_all_now()

    def _space(self, read: list[StepValues]) -> None:
        """Choose which steps are read from now on. read: those since the last time."""
        reads, count = len(read), sum(len(one.losses) + len(one.norms) for one in read)
        now_ns, pulses = monotonic_ns(), self._rank.pace.pulses
        (pulses_then, then_ns), self._last_read = self._last_read, (pulses, now_ns)
        every, keeps = self.mask + 1, 1.0
        if self._devices.is_used or self._said or self._rank.counts_itself:
            every = 1
        elif pulses_then:
            took_ns = (now_ns - then_ns) / max(1, pulses - pulses_then)
            self._unread += max(0, pulses - pulses_then - reads)
            dear = max(1.0, count / reads / VALUES)
            wanted = dear * READ_NS / max(1.0, took_ns) if took_ns < dear * SHORT_NS else 1.0
            while every < wanted and every < MAX_EVERY:
                every *= 2
            while every > 4 * wanted:  # not at once: whoever reads twice as often reads the same ones
                every //= 2
            keeps = KEPT_NS / max(1.0, took_ns * every)
        self.mask, self._keeps = max(1, every) - 1, int(min(keeps, KEPT))

    def on_said_step(self) -> None:
        """The script has said that a step is done, and it is counted: its end where no optimizer of torch's steps."""
        if not self._has_optimizer:
            self._close(self._rank.words[_STEP])
        self._has_optimizer = False

    def _ends_step(self, optimizer: Any) -> bool:
        closer = self._closer() if self._closer is not None else None
        if closer is not optimizer:
            if closer is not None and id(optimizer) not in self._others:
                self._others.add(id(optimizer))
                return False
            self._closer = weakref.ref(optimizer)
        self._others.clear()
        return True

    def _close(self, step: int) -> None:
        if self._kept:
            self.flush()
        self._rank.pace.began = -1
        self.is_due = False
        self.clipped.clear()
        values, self._unscaled = self._values, None
        if values.losses or values.norms or values.is_short or values.guarded:
            self._values = StepValues()
            self._end(values, step)
        elif self._waiting:
            self._read()
        if self._devices.is_used:
            self._devices.on_step()

    def _end(self, values: StepValues, step: int) -> None:
        values.step, values.batch = step, self._rank.words[_BATCHES]
        if self._devices.is_used:
            if values.is_short:
                self._unread += 1
                values.losses, values.norms = [], []
            if not values.is_short or values.guarded:
                self._waiting.append(values)
            self._read()
            return
        try:
            self._write(values)
        except Exception as error:
            self._fail(error)

    def _read(self) -> None:
        """Write down the steps whose values are there."""
        try:
            while self._waiting and self._waiting[0].are_here():
                self._write(self._waiting.popleft())
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._unread += 1
        except Exception as error:
            self._fail(error)

    def _write(self, values: StepValues) -> None:
        page = self._page or self._make_page()
        flags, loss, norm = values.guarded, nan, nan
        if values.losses:
            flags |= _LOSS
            loss = sum(map(float, values.losses)) if len(values.losses) > 1 else float(values.losses[0])
            if loss - loss != 0.0:
                flags |= Flag.LOSS_NAN if isnan(loss) else Flag.LOSS_INFINITE
        if values.norms:
            flags |= _NORM
            norm = (
                sqrt(sum(float(each) ** 2 for each in values.norms))
                if len(values.norms) > 1
                else float(values.norms[0])
            )
            if norm - norm != 0.0:
                flags |= Flag.NORM_NAN if isnan(norm) else Flag.NORM_INFINITE
        words = page.words
        if values.overflow and any(map(float, values.overflow)):
            flags |= _SKIPPED
            self._skipped += 1
            words[_HEAD_SKIPPED] = self._skipped
        if flags & _LEFT_OUT:
            words[_HEAD_LEFT_OUT] += 1
        is_odd = bool(flags & _NONFINITE) and not flags & (_SKIPPED | _LEFT_OUT)
        if is_odd and not self._is_odd and self._rank.trail is not None:
            self._rank.trail.send_batches(values.step)
        self._is_odd = is_odd
        count = words[_RECORDS]
        at = HEAD_WORDS + count % MAX_RECORDS * RECORD_WORDS
        words[at] = words[at + _TAIL] = 0
        _BODY.pack_into(page.bytes, 8 * (at + 1), values.step, loss, norm, flags, values.batch, self._said, count + 1)
        words[at] = count + 1
        _LAST.pack_into(page.bytes, 8 * _RECORDS, count + 1, self._unread + self._devices.unread, self._learning_rate)

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        self.flush()
        if self._page is not None:
            self._page.close()

    def _make_page(self) -> SharedPage:
        rank = self._rank
        path = os.path.join(rank.sockets, metrics_name(rank.attempt, rank.global_rank))
        self._page = SharedPage(path, SIZE_BYTES, MAGIC, rank.pid)
        return self._page

    def _add(self, step: StepValues, values: list[Value], given: Any) -> None:
        try:
            value = self._devices.read(given)
            if value is not None and len(values) < MAX_VALUES:
                values.append(value)
        except NoRoom:
            step.is_short = True
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._waiting.clear()
        if self._failures >= MAX_FAILURES:
            self._rank.metrics = None
            self._rank.fail("metrics", error)


# Where it is seen --------------------------------------------------------------------------------------------------


def install(module: Any, rank: Rank) -> None:
    """Hear of each backward(); torch."""
    rank.metrics = Metrics(rank, module.Tensor)
    original, pace, is_handed_on = module.Tensor.backward, rank.pace, module.overrides.has_torch_function_unary

    @functools.wraps(original)
    def backward(self: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
        pulses = pace.pulses
        if not is_handed_on(self):  # else it is counted when torch calls this once more, as below
            pace.backwards += 1
            pace.began = pulses
            if (gate := rank.in_time) is not None:
                gate.on_backward()
        if pulses < pace.quiet_until or gradient is not None or get_ident() != rank.owner_ident:
            return original(self, gradient, *args, **kwargs)
        metrics = rank.metrics
        # Under a mode (torch.set_default_device is one) torch calls the method of the class once more, which is this.
        if metrics is None or metrics.is_inside or (pulses + 1) & metrics.mask:
            return original(self, gradient, *args, **kwargs)
        metrics.is_inside = True
        try:
            metrics.see_loss(self)
            return original(self, gradient, *args, **kwargs)
        finally:
            metrics.is_inside = False

    backward._torchdynamo_inline = original  # type: ignore[attr-defined]  # dynamo's own convention
    module.Tensor.backward = backward


def install_clip(module: Any, rank: Rank) -> None:
    """Hear of gradients' norms; torch.nn.utils.clip_grad."""
    _replace_clip(module, rank)


def install_fsdp(module: Any, rank: Rank) -> None:
    """Likewise; torch.distributed.fsdp.fully_sharded_data_parallel."""
    _replace_clip(module.FullyShardedDataParallel, rank)
    guard = step_guard(rank)
    if guard is not None:
        replace(module.FullyShardedDataParallel, "__init__", guard.wrap_sharded)


def _replace_clip(where: Any, rank: Rank) -> None:
    replace(where, "clip_grad_norm_", functools.partial(_wrap_clip, rank))
    if rank.settings.get("detect") == "deep":
        replace(where, "clip_grad_norm_", functools.partial(wrap_clip, rank))


def _wrap_clip(rank: Rank, original: Function) -> Function:
    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        metrics = rank.metrics
        if metrics is None or metrics.is_inside or get_ident() != rank.owner_ident:
            return original(*args, **kwargs)
        metrics.is_inside = True
        try:
            norm = original(*args, **kwargs)
        finally:
            metrics.is_inside = False
        metrics.see_norm(norm)
        return norm

    if isfunction(original):
        clip_grad_norm_._torchdynamo_inline = original  # type: ignore[attr-defined]
    return clip_grad_norm_


def install_scaler(module: Any, rank: Rank) -> None:
    """Hear of scaled losses, and of steps that are left out; torch.amp.grad_scaler."""
    kind = module.GradScaler
    replace(kind, "scale", functools.partial(_wrap_scale, rank))
    replace(kind, "step", functools.partial(_wrap_step, rank))


def install_sharded_scaler(module: Any, rank: Rank) -> None:
    """FSDP's has a scale() of its own; torch.distributed.fsdp.sharded_grad_scaler."""
    replace(module.ShardedGradScaler, "scale", functools.partial(_wrap_scale, rank))


def _wrap_scale(rank: Rank, original: Function) -> Function:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        metrics = rank.metrics
        if metrics is not None:
            metrics.see_scaled(outputs, scaled)
        return scaled

    return scale


def _is_hooked(optimizer: Any) -> bool:
    """Whether torch has wrapped its step(), so that its steps are heard of."""
    return bool(getattr(getattr(type(optimizer), "step", None), "hooked", False))


def _wrap_step(rank: Rank, original: Function) -> Function:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        words = rank.words
        pulses = words[Field.PULSES]
        guard = rank.guard
        if guard is not None and self.is_enabled():
            guard.is_scaled = True
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            if guard is not None:
                guard.is_scaled = False
        metrics = rank.metrics
        # A step() that torch has not wrapped (an optimizer that is none of torch's kind) is not heard of.
        if metrics is not None and words[Field.PULSES] == pulses and _is_hooked(optimizer):
            metrics.on_left_out(optimizer)
        return result

    return step
