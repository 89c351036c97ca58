"""Batches that are left out after a rollback: where they are met again, on all ranks or on none.

guardrun says which (engine/recovery/voluntary/batch_skips.py), by a file beside the board. They are left out of what
the sampler hands out, so that nobody fetches them: the pass is shorter by so many batches, and nothing else changes.

A batch is known by its indices, by those of the batch before it, by its loader, and by the epoch where a sampler has
one. Whoever meets it where the order of samples is another, in another loader or in another epoch, trains on it.

Ranks that reduce gradients together must leave out equally many, or they come apart by a step and hang at the end of
the epoch. Each may have its own reasons for another order: one that resumes with another's random state, say. So they
agree (hooks/guards/agreement.py, which ends by itself): once every rank has met its own batches, all of them leave
them out; where some rank does not come within WAIT_S, none does. Each order is tried once an attempt.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

from guardrun.hooks.data.batch_trail import STREAM, Stream, find_epoch, name_indices
from guardrun.hooks.guards.agreement import WAIT_S, Agreement, connect, find_store
from guardrun.hooks.rank.batch_orders import Order, orders_of
from guardrun.hooks.rank.rank import Rank


class Pass:
    """How far a loader's iterator has got."""

    __slots__ = ("failure", "previous", "pulled", "source")

    def __init__(self, source: object) -> None:
        self.source = source
        """The sampler's iterator."""
        self.previous: list[int] | None = None
        """What was handed out last, left out or not."""
        self.pulled: deque[object] = deque()
        """What was looked at, and is to be handed out next; …"""
        self.failure: Exception | None = None
        """… and what the sampler raised after that."""

    def next(self, iterator: Any, original: Any) -> object:
        """The next batch's indices. Raises what the sampler does."""
        if self.pulled:
            return self.pulled.popleft()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return original(iterator)

    def look_ahead(self, count: int, iterator: Any, original: Any) -> list[object]:
        """The next so many, or as many as there are; they are still to come."""
        while len(self.pulled) < count and self.failure is None:
            try:
                self.pulled.append(original(iterator))
            except Exception as error:  # StopIteration is one
                self.failure = error
        return list(self.pulled)[:count]

    def is_empty(self) -> bool:
        """Nothing that was looked at is still to come."""
        return not self.pulled and self.failure is None


_PASS = "_guardrun_pass"  # an attribute of torch's iterators
NONE_LEFT_OUT = "batches of step {step} are not left out: {why}"


class Skips:
    """Leaves out what one rank is to."""

    def __init__(self, rank: Rank, orders: list[Order]) -> None:
        self._rank = rank
        self._orders = orders
        self.agreement: Agreement | None = None
        """With all ranks of the job; None: none was needed yet."""

    def next_index(self, iterator: Any, original: Any) -> Any:
        """The next batch's indices that are not to be left out. Raises what the sampler does."""
        state = iterator.__dict__
        stream, current = state.get(STREAM), state.get(_PASS)
        if stream is None or not (self._orders or (current is not None and not current.is_empty())):
            return original(iterator)
        source = state.get("_sampler_iter")
        if current is None or current.source is not source:
            current = state[_PASS] = Pass(source)
        while True:
            index = current.next(iterator, original)
            try:
                order = self._find(stream, state, current, index)
                is_skipped = order is not None and self._skip(order, current, iterator, original)
            except Exception as error:
                self._orders.clear()
                is_skipped = False
                self._rank.fail("skipping", error)
            if not is_skipped:
                current.previous = name_indices(index)
                return index

    def _find(self, stream: Stream, state: dict[str, Any], current: Pass, index: object) -> Order | None:
        """The order whose first batch this is."""
        named = name_indices(index)
        if named is None or stream.why:
            return None
        for order in self._orders:
            if order.batches[:1] != [named] or order.loader != stream.key:
                continue
            if current.previous is not None and (order.is_first or order.before not in (None, current.previous)):
                continue
            epoch = find_epoch(state.get("_index_sampler"))
            if order.epoch < 0 or epoch is None or epoch == order.epoch:
                return order
        return None

    def _skip(self, order: Order, current: Pass, iterator: Any, original: Any) -> bool:
        """Whether its batches are left out, of which the first has been taken from the sampler."""
        rest = order.batches[1:]
        if [name_indices(one) for one in current.look_ahead(len(rest), iterator, original)] != rest:
            return False
        self._orders.remove(order)
        why = self._ask_others(order)
        if why:
            self._rank.note("guards", NONE_LEFT_OUT.format(step=order.step, why=why))
            return False
        for _ in rest:
            current.pulled.popleft()
        current.previous = order.batches[-1]
        self._rank.send("BatchesLeftOut", order=order.id, step=order.step, batches=order.batches)
        return True

    def _ask_others(self, order: Order) -> str:
        """Why they do not all leave them out; empty: they do."""
        if self.agreement is None:
            self.agreement, why = find_agreement(self._rank)
            if self.agreement is None:
                return why
        if self.agreement.ask(order.id, wants=True):
            return ""
        return f"not all ranks met theirs within {WAIT_S:.0f} s"


def find_agreement(rank: Rank) -> tuple[Agreement | None, str]:
    """How all ranks agree; None: this one is alone, or they cannot, for the reason given. Raises as connect() does."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    has_group = c10d is not None and c10d.is_initialized()
    world = c10d.get_world_size() if has_group else 1
    if world == rank.world_size == 1:
        return None, ""
    if not has_group:
        return None, "there are several ranks, and no process group of torch.distributed"
    if world != rank.world_size:
        return None, f"the process group has {world} ranks, and the run {rank.world_size}"
    store, why = find_store(c10d)
    if store is None:
        return None, why
    prefix = f"guardrun/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{rank.attempt}/skips"
    return Agreement(connect(c10d, prefix), world), ""


def install(rank: Rank) -> None:
    """Have batches left out, where any are to be."""
    orders = orders_of(rank)
    if orders:
        rank.skips = Skips(rank, orders)
