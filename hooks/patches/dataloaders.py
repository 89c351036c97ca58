"""Batches: how many the training thread got, since when it has been waiting for the next, and which it had last."""

from __future__ import annotations

import functools
from _thread import get_ident
from time import monotonic_ns
from typing import Any
from weakref import ref

from guardrun.hooks.data import batch_skips, batch_trail, data_replay
from guardrun.hooks.data.batch_trail import find_epoch
from guardrun.hooks.patches.sample_orders import SampleOrders
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank.parts import BatchSkipper

_SINCE, _TOTAL = int(Field.DATA_SINCE_NS), int(Field.DATA_TOTAL_NS)
_BATCHES, _PROGRESS_NS = int(Field.BATCHES), int(Field.PROGRESS_NS)

MAX_INDICES = 64
MAX_INDEX_CHARS = 100
_SENT = "_guardrun_sent"
"""Set on torch's iterators: what their sampler has handed out, by the number that the batch will come back under."""


def install(module: Any, rank: Rank) -> None:
    """Wrap the one `__next__` that all of torch's data loaders share, and where they ask their samplers."""
    kind = module._BaseDataLoaderIter
    original = kind.__next__
    batches = rank.batches = Batches()
    trail = rank.trail = batch_trail.Trail(rank)
    batch_trail.install(kind, rank)
    batch_skips.install(rank)
    data_replay.install(rank)
    if hasattr(kind, "_next_index"):
        if rank.world_size > 1 and rank.samples is None:
            rank.samples = SampleOrders(rank)
        kind._next_index = _wrap_next_index(rank, kind._next_index)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        words = rank.words
        if words[_SINCE]:  # A loader that reads from another: the outer one counts.
            return original(self)
        if get_ident() != rank.owner_ident:  # Prefetching in a thread: training waits elsewhere, or not at all.
            batch = original(self)
            words[_BATCHES] += 1
            return batch
        replay = rank.replay
        if replay is not None and (again := replay.hand_again(self)) is not data_replay.NOTHING:
            return again
        began_ns = monotonic_ns()
        words[_SINCE] = began_ns
        batches.asked = self
        try:
            batch = original(self)
        except StopIteration:
            if rank.samples is not None:
                rank.samples.on_end(self)
            trail.end(self.__dict__)
            if replay is not None:
                replay.on_end(self)
            raise
        except BaseException:
            batches.note_batch(self, words[_BATCHES] + 1)
            raise
        finally:
            ended_ns = monotonic_ns()
            words[_SINCE] = 0
            batches.asked = None
            words[_TOTAL] += ended_ns - began_ns
        words[_BATCHES] += 1
        words[_PROGRESS_NS] = ended_ns
        batches.note_batch(self, words[_BATCHES])
        samples = rank.samples
        if samples is not None:
            samples.on_batch(self, batches.indices)
        trail.note(self.__dict__, batches.indices)
        return batch if replay is None else replay.on_batch(self, batches.indices, batch)

    kind.__next__ = __next__


def _wrap_next_index(rank: Rank, original: Any) -> Any:
    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        skips, replay = rank.skips, rank.replay
        if replay is not None:
            index = replay.next_index(self, original if skips is None else functools.partial(_skip, skips, original))
        else:
            index = original(self) if skips is None else skips.next_index(self, original)
        state = self.__dict__
        sent = state.get(_SENT)
        if sent is None:
            sent = state[_SENT] = {}
        sent[state.get("_send_idx", 0)] = index
        return index

    return _next_index


def _skip(skips: BatchSkipper, original: Any, iterator: Any) -> Any:
    return skips.next_index(iterator, original)


class Batches:
    """References to what the samplers handed out last; looked at only when something has gone wrong.

    "Last" is what the training thread took from a loader: one that fetches a batch ahead (accelerate's) trains on the
    one before, so that is kept too.
    """

    def __init__(self) -> None:
        self._number = 0
        self.indices: object = None
        """Of the last batch, as its sampler handed them out; None: not known."""
        self._before: object = None
        self._sampler: Any = None
        self.asked: Any = None
        """The iterator that the training thread waits for."""

    def note_batch(self, iterator: Any, number: int) -> None:
        """An iterator has returned its next batch, or failed to. Half a microsecond. Never raises."""
        self._before, self.indices, self._number = self.indices, None, number
        try:
            state = iterator.__dict__
            sent = state.get(_SENT)
            try:
                self._sampler = ref(state["_index_sampler"])
            except TypeError:  # A list of batches can't be referred to so; it has no epoch either.
                self._sampler = None
            if sent is None:
                return
            if "_rcvd_idx" not in state:
                self.indices = sent.get(0)
            elif state.get("_in_order", True):
                self.indices = sent.pop(state["_rcvd_idx"] - 1, None)
            else:  # Whichever came first was returned, and nothing says which.
                sent.clear()
        except Exception:
            self.indices = None

    def describe(self) -> dict[str, Any]:
        """The batch as data; empty before the first.

        batch: its number since the attempt began, from 1, all loaders of this rank together. epoch: where a sampler
        has one (DistributedSampler). indices: at most MAX_INDICES of what the sampler handed out, `size` of them in
        all. indices_before: those of the batch before.
        """
        if not self._number:
            return {}
        return _describe_batch(self._number, self._sampler() if self._sampler else None, self.indices, self._before)

    def describe_still(self) -> dict[str, Any]:
        """The batch at which the training thread stands, told by another thread while it does: as describe() has it.

        is_awaited: it is still waiting for it. Only plain numbers and texts are shown: to ask a sampler's own objects
        what they are could wait for a device, as training may.
        """
        asked, number, indices, before = self.asked, self._number, self.indices, self._before
        if asked is None:
            if not number or not _is_plain(indices) or not _is_plain(before):
                return {"batch": number} if number else {}
            return _describe_batch(number, self._sampler() if self._sampler else None, indices, before)
        state = asked.__dict__
        awaited = state.get(_SENT, {}).get(state.get("_rcvd_idx", 0)) if state.get("_in_order", True) else None
        awaited = awaited if _is_plain(awaited) else None
        return {**_describe_batch(number + 1, state.get("_index_sampler"), awaited, None), "is_awaited": True}


def _describe_batch(number: int, sampler: Any, indices: object, before: object) -> dict[str, Any]:
    told: dict[str, Any] = {"batch": number}
    epoch = find_epoch(sampler)
    if epoch is not None:
        told["epoch"] = epoch
    for name, some in (("indices", indices), ("indices_before", before)):
        shown = render_indices(some)
        if shown:
            told[name] = shown
    if "indices" in told:
        told["size"] = len(indices) if isinstance(indices, list | tuple) else 1
    return told


def _is_plain(indices: object) -> bool:
    items = indices[:MAX_INDICES] if type(indices) in (list, tuple) else [indices]  # type: ignore[index]
    return all(item is None or type(item) in (int, str) for item in items)


def render_indices(indices: object) -> list[int | str]:
    """What a sampler handed out, as numbers or short texts. Iterable datasets have no indices, but as many None."""
    items = list(indices[:MAX_INDICES]) if isinstance(indices, list | tuple) else [indices]
    return [_render_index(item) for item in items if item is not None]


def _render_index(item: object) -> int | str:
    try:
        return int(item)  # type: ignore[call-overload,no-any-return]  # a tensor or numpy's, as well
    except Exception:
        return str(item)[:MAX_INDEX_CHARS]
