"""Which samples a rank trains on, and in which order: a checksum of the first batches of each loader's first passes.

All that is read is what samplers hand out: plain whole numbers, and only FIRST batches of TURNS passes over each of
LOADERS loaders. A batch of them takes two to six microseconds, one after them a fifth of one. No batch itself is looked
at.

A pass counts where its batches are trained on: for TRAINED of them a backward() follows before the next one is fetched,
and no batch of another loader was since the last backward(). An evaluation has none; of loaders that take turns within
a step nobody can say which one is trained on. Nor is anything known of samples without whole numbers (iterable
datasets).

Only the training thread calls what is here; nothing raises, and what fails is turned off.
"""

from __future__ import annotations

import os
import struct
import sys
import weakref
from array import array
from hashlib import blake2b
from typing import Any

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.data.samplers import describe_sampler
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.samples_page import (
    HEAD_WORDS,
    MAGIC,
    MAX_RECORDS,
    RECORD_WORDS,
    SIZE_BYTES,
    Flag,
    Head,
    samples_name,
)

FIRST = 32
"""Batches of a pass."""
MOST_INDICES = 64
"""Of a batch."""
TURNS = 4
LOADERS = 8
MAX_MODELS = 8
LEAST = 8
"""Batches: a pass of fewer says nothing about an order."""
TRAINED = 0.75
"""Of a pass's first batches, not all: who fetches ahead trains on the first one after the second was fetched."""
ON_ITERATOR = "_guardrun_order"
_BODY = struct.Struct(f"<{RECORD_WORDS}q")
_MASK = (1 << 63) - 1
_STEP = int(Field.STEP)


class Pass:
    """One over a loader, so far."""

    __slots__ = ("batches", "digest", "distinct", "sampler", "trained")

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.digest = blake2b(digest_size=8)
        self.distinct: set[int] = set()
        self.batches = self.trained = 0


class Loader:
    """What all passes over it have in common: the sampler."""

    def __init__(self, sampler: Any, number: int) -> None:
        self.sampler = weakref.ref(sampler)
        self.number = number
        self.turns = 0


class SampleOrders:
    """One rank's."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._page: SharedPage | None = None
        """None until there is something to write."""
        self._records = 0
        self._loaders: list[Loader] = []
        self._last: Pass | None = None
        """The one that the last batch is of, while it is watched."""
        self._backwards = self._iterator = 0
        """As a batch was last fetched: calls so far, and id() of what it is from; 0: of none."""
        self._is_mixed = False
        """Batches of several loaders were fetched since there was a call."""
        self._group: tuple[int, int] | None = None
        """An identity and how many members; (0, 0): there are several groups, and none is compared."""
        self._models: list[weakref.ref[Any]] = []

    def add_model(self, model: Any) -> None:
        """A DistributedDataParallel model was made."""
        try:
            if self._rank.is_owner():
                self.add_group(sys.modules["torch"].distributed.get_process_group_ranks(model.process_group))
                self._models = [one for one in self._models if one() is not None][-MAX_MODELS + 1 :]
                self._models.append(weakref.ref(model))
        except Exception as error:
            self._fail(error)

    def add_group(self, members: list[int]) -> None:
        """Gradients of these global ranks are averaged."""
        if len(members) < 2:
            return
        ident = blake2b(repr(sorted(members)).encode(), digest_size=8).digest()
        group = (int.from_bytes(ident, "little") >> 2) or 1, len(members)
        self._group = group if self._group in (None, group) else (0, 0)

    def on_batch(self, iterator: Any, indices: object) -> None:
        """The training thread has got its next batch, of these indices; None: not known."""
        try:
            self._settle(id(iterator))
            state = iterator.__dict__
            number = state["_num_yielded"]
            if number > FIRST + 1:
                return
            if self._records >= MAX_RECORDS:
                self._rank.samples = None
                return
            if number == 1:
                state[ON_ITERATOR] = self._begin(state["_index_sampler"])
            one = state.get(ON_ITERATOR)
            if one is None:
                return
            if number <= FIRST and _add(one, indices):
                self._last = one
                return
            state[ON_ITERATOR] = None
            if number > FIRST:
                self._end(one)
        except Exception as error:
            self._fail(error)

    def on_end(self, iterator: Any) -> None:
        """A loader has no more batches."""
        try:
            self._settle(0)
            one = iterator.__dict__.pop(ON_ITERATOR, None)
            if one is not None:
                self._end(one)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _settle(self, iterator: int) -> None:
        """Another batch is fetched, of an iterator (by id(); 0: it had no more): was the last one trained on?"""
        backwards = self._rank.pace.backwards
        if backwards != self._backwards:
            if self._last is not None and not self._is_mixed:
                self._last.trained += 1
            self._backwards, self._is_mixed = backwards, False
        elif iterator and self._iterator and iterator != self._iterator:
            self._is_mixed = True
        self._last, self._iterator = None, iterator or self._iterator

    def _find(self, sampler: Any) -> Loader | None:
        return next((one for one in self._loaders if one.sampler() is sampler), None)

    def _begin(self, sampler: Any) -> Pass | None:
        """A pass over a loader; None where enough is known of it."""
        try:
            weakref.ref(sampler)
        except TypeError:  # A list of batches, say.
            return None
        known = self._find(sampler)
        is_enough = len(self._loaders) >= LOADERS if known is None else known.turns >= TURNS
        return None if is_enough else Pass(sampler)

    def _end(self, one: Pass) -> None:
        """As much of it as is of interest is over."""
        if one.batches < LEAST or one.trained < TRAINED * one.batches:
            return
        loader = self._find(one.sampler)
        if loader is None:
            if len(self._loaders) >= LOADERS:
                return
            loader = Loader(one.sampler, len(self._loaders))
            self._loaders.append(loader)
        length, epoch, flags = describe_sampler(one.sampler)
        if any(getattr(getattr(model(), "_join_config", None), "enable", False) for model in self._models):
            flags |= Flag.JOINED
        order = int.from_bytes(one.digest.digest(), "little") & _MASK
        step = self._rank.words[_STEP]
        body = (loader.number, loader.turns, one.batches, len(one.distinct), order, length, epoch, flags, step)
        loader.turns += 1
        self._write((*body, *(self._group or (0, 0))))

    def _write(self, body: tuple[int, ...]) -> None:
        page = self._page = self._page or self._make_page()
        at = 8 * (HEAD_WORDS + self._records * RECORD_WORDS)
        _BODY.pack_into(page.bytes, at, *body, *(0,) * (RECORD_WORDS - len(body)))
        self._records += 1
        page.words[Head.RECORDS] = self._records

    def _make_page(self) -> SharedPage:
        rank = self._rank
        path = os.path.join(rank.sockets, samples_name(rank.attempt, rank.global_rank))
        return SharedPage(path, SIZE_BYTES, MAGIC, rank.pid)

    def _fail(self, error: Exception) -> None:
        self._rank.samples = None
        self._rank.fail("samples", error)


def _add(one: Pass, indices: object) -> bool:
    """Take a batch in; False where it has no whole numbers, or where asking might wait for a device (a tensor's)."""
    part = indices[:MOST_INDICES] if isinstance(indices, list | tuple) else [indices]
    if not all(kind is int or kind.__module__ == "numpy" for kind in set(map(type, part))):
        return False
    try:
        numbers = array("q", part)
    except (TypeError, OverflowError):
        return False
    size = len(indices) if isinstance(indices, list | tuple) else 1
    one.digest.update(struct.pack("<q", size) + numbers.tobytes())
    one.distinct.update(numbers)
    one.batches += 1
    return True
