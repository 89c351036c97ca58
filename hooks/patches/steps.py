"""What steps go to: waiting for other ranks, data, collecting, own work."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from guardrun.hooks.checksums import checker
from guardrun.hooks.guards.step_guard import step_guard
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field, Milestone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank.parts import DeviceTimer, OptimizerGuard, StepObserver


# Step breakdown -----------------------------------------------------------------------------------------------------
# What a rank's steps go to: waiting for other ranks, waiting for data, collecting; the rest is its own work.
#
# In step with others every rank's step takes as long as the slowest one's. What tells them apart is how much of it each
# waits. Ordinary steps are summed up on the board, about once a second:
#
#     SPENT_STEPS, SPENT_NS, SPENT_WAITED_NS, SPENT_DATA_NS, SPENT_GC_NS          (SPENT_TAIL: the steps once more)
#
# A step that takes much longer than those before it (an evaluation, a save, a compilation) is left out, with what was
# summed up since the last time: it says nothing about how fast the rank is.
#
# Waiting is the time inside torch.distributed's functions and Work.wait (hooks/patches/collectives.py), and at the end
# of DDP's backward pass, in C++: torch's own log of DDP tells when the last gradient was there and when the last
# reduction was. On CPUs it is told to time as many as are read; on devices it times every hundredth by itself, with
# events of the device, and is left alone. Between two steps, which take the caches, timing one costs 50 µs, and reading
# it another 80: that is done at most every 200 ms. torch writes its log at the next forward pass: after a step it tells
# of the one before, or of an earlier one.
#
# What cannot be told: a device's time inside of collectives that are not DDP's, unless the user has it timed
# (hooks/patches/device_timing.py): then the sums are of steps timed there. Else it counts as the rank's own, of every
# rank alike, and WAITS_UNSEEN says so. SPENT_WAITED_NS can be too small, never too large.


PUBLISH_NS = 1_000_000_000
READ_NS = 200_000_000
ODD = 5
"""A step that takes so many times as long as those before it is none to count."""
DDP_ONE_IN = 100
"""torch's own."""
MAX_REPLICAS = 8
MAX_GROUPS = 16

_COLLECTIVE_TOTAL = int(Field.COLLECTIVE_TOTAL_NS)
_DATA_TOTAL, _GC_TOTAL = int(Field.DATA_TOTAL_NS), int(Field.GC_TOTAL_NS)
_STEPS, _NS, _TAIL = int(Field.SPENT_STEPS), int(Field.SPENT_NS), int(Field.SPENT_TAIL)
_WAITED, _DATA, _GC = int(Field.SPENT_WAITED_NS), int(Field.SPENT_DATA_NS), int(Field.SPENT_GC_NS)


class StepBreakdown:
    """Sums up the training thread's steps; it alone calls on_step()."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._replicas: list[Replica] = []
        self._last_ns = 0
        self.limit_ns = 0
        """A step that takes longer is an odd one; 0 before the first."""
        self._due_ns = 0
        self._read_ns = 0
        self._steps = 0
        """Since the base."""
        self._base = (0, 0, 0, 0)
        """Now, waited, data, gc: as they were where the sum goes on from."""
        self._is_unseen = False

    def add_replica(self, model: Any) -> None:
        """A DDP model of this rank."""
        self._replicas = [replica for replica in self._replicas if replica.is_there()][-MAX_REPLICAS + 1 :]
        self._replicas.append(Replica(model))

    def models(self) -> list[Any]:
        """DDP models that are still there. Any thread may ask."""
        return [model for replica in list(self._replicas) if (model := replica.model()) is not None]

    @property
    def next_ns(self) -> int:
        """There is nothing to do before, but for odd steps."""
        return 0 if self._rank.device_timer is not None else self._read_ns

    def add_quiet(self, steps: int, last_ns: int) -> None:
        """So many steps were done, none of them odd or after next_ns; the last one at this time."""
        self._steps += steps
        self._last_ns = last_ns

    def on_step(self, now_ns: int) -> None:
        """A step is done. Never raises."""
        timer = self._rank.device_timer
        if timer is not None and not self._replicas and timer.on_step():
            if now_ns >= self._due_ns:
                self._publish_timed(timer, now_ns)
            return
        took_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if took_ns > self.limit_ns:
            self._exclude_step(now_ns)
            return
        self._steps += 1
        if now_ns < self._read_ns:
            return
        try:
            if self._replicas:
                self._read_ns = now_ns + READ_NS
                for replica in self._replicas:
                    replica.read()
            else:
                self._read_ns = self._due_ns
            if now_ns >= self._due_ns:
                self._publish(now_ns)
        except Exception as error:
            self._replicas = []
            self._due_ns = self._read_ns = 1 << 62
            self._rank.fail("spent", error)

    def _exclude_step(self, now_ns: int) -> None:
        """Begin anew with the next step. Where odd ones come again and again, they are ordinary: the limit grows."""
        self.limit_ns = 2 * self.limit_ns if self.limit_ns else 1 << 62
        self._begin(now_ns)
        for replica in self._replicas:
            replica.begin(is_odd=True)

    def _begin(self, now_ns: int) -> None:
        words = self._rank.words
        self._base = (now_ns, words[_COLLECTIVE_TOTAL], words[_DATA_TOTAL], words[_GC_TOTAL])
        self._steps = 0
        self._due_ns = now_ns + PUBLISH_NS
        self._read_ns = now_ns
        for replica in self._replicas:
            replica.begin()

    def _publish(self, now_ns: int) -> None:
        waits = [wait_ns for replica in self._replicas if (wait_ns := replica.mean_ns()) is not None]
        if self._replicas and not waits:
            self._due_ns = now_ns + PUBLISH_NS  # nothing was timed yet: it must not look as if nobody had waited
            return
        began_ns, waited_ns, data_ns, gc_ns = self._base
        words, steps = self._rank.words, self._steps
        took_ns = now_ns - began_ns
        in_calls_ns = words[_COLLECTIVE_TOTAL] - waited_ns
        waited_ns = min(in_calls_ns + int(sum(waits) * steps), took_ns)
        self._add(steps, took_ns, waited_ns, words[_DATA_TOTAL] - data_ns, words[_GC_TOTAL] - gc_ns)
        timer = self._rank.device_timer
        is_untimed = not self._replicas and (timer is None or timer.is_off)
        if is_untimed and not self._is_unseen and waits_on_device():
            self._say_unseen()
        self.limit_ns = ODD * took_ns // steps
        for replica in self._replicas:
            replica.time_one_in(READ_NS * steps // max(1, 2 * took_ns))
        self._begin(now_ns)

    def _publish_timed(self, timer: DeviceTimer, now_ns: int) -> None:
        self._due_ns = now_ns + PUBLISH_NS
        sums = timer.pop_sums()
        if not sums[0]:
            return
        self._add(*sums)
        if not timer.has_seen_waits and not self._is_unseen:
            self._say_unseen()

    def _add(self, steps: int, took_ns: int, waited_ns: int, data_ns: int, gc_ns: int) -> None:
        words = self._rank.words
        words[_TAIL] = 0
        words[_NS] += took_ns
        words[_WAITED] += waited_ns
        words[_DATA] += data_ns
        words[_GC] += gc_ns
        words[_STEPS] += steps
        words[_TAIL] = words[_STEPS]

    def _say_unseen(self) -> None:
        self._is_unseen = True
        self._rank.mark(Milestone.WAITS_UNSEEN)


def waits_on_device() -> bool:
    """Whether ranks communicate on a device that is in use: the host sees nothing of what they wait there."""
    try:
        device = sys.modules["torch"].accelerator.current_accelerator()
        if device is None or not getattr(sys.modules["torch"], device.type).is_initialized():
            return False
        groups = list(sys.modules["torch.distributed.distributed_c10d"]._world.pg_map)[:MAX_GROUPS]
        return any(kind.type == device.type for group in groups if group.size() > 1 for kind in group._device_types)
    except Exception:  # A torch that does not tell, a group that is being destroyed.
        return False


class Replica:
    """A DDP model, and what its ranks have waited at the end of its backward passes."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._last: tuple[int, int] = (0, 0)
        self._sum_ns = 0
        self._count = 0
        self._is_stale = False
        """What the log tells next may be of an odd step."""
        is_detailed = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"  # logs every timed step
        self._one_in = 0 if is_detailed or getattr(model, "device_type", "") != "cpu" else DDP_ONE_IN
        """Steps of which torch times one; 0: that is left to it."""
        self.time_one_in(1)

    def is_there(self) -> bool:
        """Whether anybody else still has the model."""
        return self._model() is not None

    def model(self) -> Any:
        """The model, or None."""
        return self._model()

    def time_one_in(self, steps: int) -> None:
        """Have torch time one step in so many, from now on."""
        steps = min(max(1, steps), DDP_ONE_IN)
        model = self._model()
        if model is not None and self._one_in and steps != self._one_in:
            model._set_ddp_runtime_logging_sample_rate(steps)
            self._one_in = steps

    def begin(self, *, is_odd: bool = False) -> None:
        """What was read before does not count; nor, after an odd step, what the log tells next: it lags by a step."""
        self._sum_ns = self._count = 0
        self._is_stale = is_odd

    def read(self) -> None:
        """Take the newest step in torch's log, if it is a new one. torch's lock is free: no backward pass runs."""
        model = self._model()
        if model is None:
            return
        log = model.logger._get_ddp_logging_data().ints_map
        timed = (log.get("backward_comm_time", 0), log.get("backward_compute_comm_overlap_time", 0))
        is_new, is_stale, self._last = timed != self._last, self._is_stale, timed
        if is_new or not self._one_in:  # where torch times few steps, the next in the log is hardly the odd one
            self._is_stale = False
        if is_new and not is_stale:
            self._sum_ns += max(0, timed[0] - timed[1])
            self._count += 1

    def mean_ns(self) -> float | None:
        """Of the steps that were read; None where there was none."""
        return self._sum_ns / self._count if self._count else None


def step_observer(rank: Rank) -> StepObserver:
    """The rank's, made when it is first asked for."""
    found = rank.spent
    if found is None:
        found = rank.spent = StepBreakdown(rank)
    return found


def install_ddp(module: Any, rank: Rank) -> None:
    """Hear of DDP models, and time what their forward passes wait for buffers; torch.nn.parallel.distributed."""
    spent = step_observer(rank)
    checker.install(rank)
    kind = module.DistributedDataParallel
    kind.__init__ = _wrap_init(kind.__init__, rank, spent, step_guard(rank))
    if hasattr(kind, "_sync_buffers"):
        kind._sync_buffers = _wrap_sync(kind._sync_buffers, rank)


def _wrap_init(original: Any, rank: Rank, spent: StepObserver, guard: OptimizerGuard | None) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            spent.add_replica(self)
            if guard is not None:
                guard.add_replica(self)
        except Exception as error:
            rank.fail("spent", error)
        if rank.checksums is not None:
            rank.checksums.add_model(self)
        if rank.samples is not None:
            rank.samples.add_model(self)

    return __init__


def _wrap_sync(original: Any, rank: Rank) -> Any:
    """The ranks take rank 0's buffers (those of batch norm, say) before each forward pass: they wait for it in C++."""

    @functools.wraps(original)
    def _sync_buffers(self: Any) -> Any:
        began_ns = monotonic_ns()
        try:
            return original(self)
        finally:
            if get_ident() == rank.owner_ident:
                rank.words[_COLLECTIVE_TOTAL] += monotonic_ns() - began_ns

    _sync_buffers._torchdynamo_inline = original  # type: ignore[attr-defined]  # dynamo's own convention
    return _sync_buffers
