"""Optimizer steps: the pulse of training, and a count of steps for scripts that don't count for us.

torch calls the global post hook for each optimizer, also compiled and scaled ones. With an optimizer a parameter it
fires many times a step, so steps are those of the optimizer that has done most.

In the middle of training, which takes the caches, each object that is touched costs half a microsecond. So after a step
it is planned up to which pulse, and until when, there is only to be counted, but for a loss that is read: such steps
are quiet, if they are of the same optimizer and take no longer than steps do.
"""

from __future__ import annotations

import functools
import sys
import weakref
from _thread import get_ident
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from guardrun.hooks.guards import gradient_groups
from guardrun.hooks.guards.step_guard import install as install_guard
from guardrun.hooks.patches import device_memory
from guardrun.hooks.patches.devices import reporter
from guardrun.hooks.patches.steps import step_observer
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import PHASES, Field, Milestone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_QUIET = 64
_PULSES, _PROGRESS_NS = int(Field.PULSES), int(Field.PROGRESS_NS)
_STEP, _STEP_NS = int(Field.STEP), int(Field.STEP_NS)


class OptimizerSteps:
    """Hears of one rank's."""

    __slots__ = (
        "_alone", "_and_then", "_busy_at", "_calm_ns", "_counts", "_devices", "_known", "_last_ns", "_limit_ns",
        "_pace", "_rank", "_spent", "_watched",
    )  # fmt: skip

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._pace = rank.pace
        self._spent = step_observer(rank)
        self._devices = reporter(rank)
        self._and_then: Callable[[Any], None] = self._devices.on_step
        """What a step that is looked at ends with."""
        self._counts: dict[int, int] = {}
        """By id() of an optimizer."""
        self._watched: dict[int, weakref.ref[Any]] = {}
        """An id is used again after its object's end; the count must not go on with the next one."""
        self._alone = 0
        """id() of the optimizer whose steps may be quiet."""
        self._calm_ns = self._last_ns = self._limit_ns = 0
        """Until when; the end of the last step; what longer ones are odd."""
        self._busy_at = 0
        """The pulse at which there is more to do than to read a step's loss."""
        self._known = 0
        """Pulses up to the last step that was looked at, and that one."""

    def on_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped. Raises nothing of its own."""
        rank, pace = self._rank, self._pace
        try:
            words = rank.words
            now_ns = monotonic_ns()
            pulses = words[_PULSES]
            words[_PULSES] = pace.pulses = pulses + 1
            words[_PROGRESS_NS] = now_ns
            is_calm = now_ns < self._calm_ns and now_ns - self._last_ns <= self._limit_ns
            if is_calm and id(optimizer) == self._alone and pulses < self._busy_at:
                step = words[_STEP] + 1
                if pulses < pace.quiet_until or self._read(optimizer, step):
                    words[_STEP] = step
                    words[_STEP_NS] = self._last_ns = now_ns
                    return
            self._look(optimizer, pulses, now_ns)
        except Exception as error:
            if error is rank.passed_on:
                rank.passed_on = None
                raise
            rank.fail("optimizer", error)

    def watch(self, call: Callable[[Any], None] | None) -> None:
        """Have steps that are not quiet call it with their optimizer; None: no more. Any thread may ask.

        The next step is not quiet, but for one that is being counted right now: ask again.
        """
        devices = self._devices

        def both(optimizer: Any) -> None:
            devices.on_step(optimizer)
            if call is not None:
                call(optimizer)

        self._and_then = devices.on_step if call is None else both
        self._pace.quiet_until = 0

    def optimizers(self) -> list[Any]:
        """Those that have stepped, and are still there. Any thread may ask."""
        found = [known() for known in list(self._watched.values())]
        return [optimizer for optimizer in found if optimizer is not None]

    def _read(self, optimizer: Any, step: int) -> bool:
        """Have a step read that is not quiet, but for nothing else; False: it has to be looked at."""
        metrics, pace = self._rank.metrics, self._pace
        if not pace.quiet_until or metrics is None or not metrics.on_plain(optimizer, step):
            return False
        if pace.quiet_until:  # nobody has wanted to see the next step meanwhile
            pace.quiet_until = _next_read(pace.pulses, metrics.mask)
        return True

    def _look(self, optimizer: Any, pulses: int, now_ns: int) -> None:
        rank, key, counts = self._rank, id(optimizer), self._counts
        if pulses > self._known and self._alone in counts:
            counts[self._alone] += pulses - self._known
            self._spent.add_quiet(pulses - self._known, self._last_ns)
        self._known, self._last_ns = pulses + 1, now_ns
        count = counts[key] = counts[key] + 1 if key in counts else self._adopt(optimizer)
        words = rank.words
        is_step = count > words[_STEP] and not rank.counts_itself
        if is_step:
            words[_STEP] = count
            words[_STEP_NS] = now_ns
            self._spent.on_step(now_ns)
            if rank.gc_policy is not None:
                rank.gc_policy.on_step(now_ns)
        metrics, memory, checksums = rank.metrics, rank.memory, rank.checksums
        if metrics is not None and (not (pulses + 1) & metrics.mask or metrics.is_due):
            metrics.on_optimizer(optimizer)
        if memory is not None and now_ns >= memory.due_ns:
            memory.on_step(optimizer, now_ns)
        if checksums is not None and count >= checksums.due.get(key, 0):
            checksums.on_optimizer(optimizer, count)
        may_be_quiet = is_step and len(counts) == 1 and rank.guard is None and rank.gc_policy is None
        self._pace.quiet_until = self._plan(key, count, pulses + 1) if may_be_quiet else 0
        self._and_then(optimizer)  # which may want to see the next one, too

    def _plan(self, key: int, count: int, begins: int) -> int:
        """Up to which pulse steps are quiet. begins: the count of pulses now."""
        metrics, memory, checksums = self._rank.metrics, self._rank.memory, self._rank.checksums
        self._alone, self._limit_ns, self._calm_ns = key, self._spent.limit_ns, self._spent.next_ns
        if memory is not None:
            self._calm_ns = min(self._calm_ns, memory.due_ns)
        self._busy_at = begins + MAX_QUIET
        if checksums is not None:
            self._busy_at = min(self._busy_at, begins + checksums.due.get(key, 0) - count - 1)
        return self._busy_at if metrics is None else min(self._busy_at, _next_read(begins, metrics.mask))

    def _adopt(self, optimizer: Any) -> int:
        """Begin to count one that is seen for the first time."""
        key, rank, counts = id(optimizer), self._rank, self._counts
        if counts and rank.metrics is not None:
            rank.metrics.read_all()

        def forget(_: object) -> None:
            rank.pace.quiet_until = 0
            counts.pop(key, None)
            self._watched.pop(key, None)

        self._watched[key] = weakref.ref(optimizer, forget)
        if not rank.has_reached(Milestone.FIRST_PROGRESS):
            rank.mark(Milestone.FIRST_PROGRESS)
        words = rank.words
        if words[Field.PHASE] == PHASES.index("start"):
            rank.phase = "train"
            words[Field.PHASE] = PHASES.index("train")
            words[Field.PHASE_SINCE_NS] = monotonic_ns()
        return 1


def _next_read(pulses: int, mask: int) -> int:
    """The first count of pulses, from this one on, at which a step begins that is read."""
    return ((pulses + 1 + mask) & ~mask) - 1


def install(module: Any, rank: Rank) -> None:
    """Register the hook with torch.optim.optimizer. Raises AttributeError before torch 2.2."""
    rank.steps = steps = OptimizerSteps(rank)
    module.register_optimizer_step_post_hook(steps.on_step)
    if rank.in_time is not None:  # asked for before torch was there
        rank.in_time.open(module)
    install_guard(module, rank)
    gradient_groups.install(module, rank)
    device_memory.install(module, rank)


def install_initial_state(module: Any, rank: Rank) -> None:
    """Pass over the step by which torch.distributed.checkpoint.state_dict gives an optimizer a state to load into.

    It has no gradients, and a rate of 0: nothing was trained. A script that resumes does it before its first step, and
    would be a step ahead of itself from then on. Where a function of save_with() asks for an optimizer's state it isn't
    done at all: that would let go of gradients which the thread that trains may be computing.
    """
    original = getattr(module, "_init_optim_state", None)
    if original is None:
        return

    @functools.wraps(original)
    def _init_optim_state(optim: Any, *args: Any, **kwargs: Any) -> Any:
        if rank.saving_ident == get_ident():
            return None
        if optim.state:  # then nothing is done, and optimizer.step() is not to be unheard of meanwhile
            return original(optim, *args, **kwargs)
        with _unheard(rank):
            return original(optim, *args, **kwargs)

    module._init_optim_state = _init_optim_state


@contextmanager
def _unheard(rank: Rank) -> Iterator[None]:
    """No hook of guardrun's hears of steps; others do."""
    optimizer, guard = sys.modules["torch.optim.optimizer"], rank.guard
    tables = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    before = [dict(table) for table in tables]
    for table in tables:
        for key, hook in list(table.items()):
            if str(getattr(hook, "__module__", "")).startswith("guardrun."):
                del table[key]
    rank.guard = None
    try:
        yield
    finally:
        rank.guard = guard
        for table, known in zip(tables, before, strict=True):
            added = dict(table)
            table.clear()
            table.update(known | added)  # in the order in which they were
