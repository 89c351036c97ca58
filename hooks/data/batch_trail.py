"""Which batches the last steps were computed from: references, looked at once a step is not finite.

Each batch that the training thread takes from one of torch's data loaders is noted with the step under way and its
place in the loader's pass. The step's own batches are those noted since the step before, of the loader that training
takes its steps from: the one after whose batches backward() is called most. Right to a step: whoever fetches a batch
ahead (accelerate does) computes the step from the one before, which shows in `ahead`.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections import deque
from hashlib import blake2b
from typing import Any, NamedTuple

from guardrun.hooks.data.sample_ledger import Pass, SampleLedger, flags_of
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from guardrun.hooks.data.data_replay import Account

MAX_KEPT = 512
MAX_BATCH = 5_000
"""Indices of a batch; larger ones are not kept."""
MAX_KEPT_INDICES = 64_000
"""Of all batches of a loader that are kept: references to what a sampler has made, which would else be freed."""
MAX_NAMED_INDICES = 25_000
"""Of a message: messages.MAX_MESSAGE_BYTES holds nine bytes of each."""
MAX_LOADERS = 16
MAX_SENT = 32
"""Messages of an attempt: steps that a script overcomes itself may come again and again."""
STEPS_BEFORE, STEPS_AFTER = 4, 1
"""Of the first step that is not finite: after a reduction another rank's first one is this, or the one after it."""
MAX_PLACES = 100
"""Three of a frame."""
MAX_KEYS = 256
LOADERS = "torch.utils.data.dataloader"
STREAM = "_guardrun_stream"
"""Set on torch's iterators."""

_STEP = int(Field.STEP)
ITERABLE = 1
"""torch's _DatasetKind.Iterable."""
NO_LOADER = "no data loader of torch's was seen"
ANY_ORDER = "its data loader hands batches out in any order (in_order=False)"
HAS_NO_INDICES = "an iterable dataset has no indices"
NOT_PLAIN = "what its sampler hands out are no plain numbers"
SAME_LIST = "its sampler hands out the same list again and again"
TOO_LARGE = "its batches are too large to be named"
SEVERAL = "its steps take batches from several data loaders"


class Stream:
    """What is known of an iterator: which loader's it is, and how far its pass over the sampler has got."""

    def __init__(self, loader: Any) -> None:
        self.key = find_key(loader)
        self.why = _why_unnamed(loader)
        self.source: Any = None
        """The sampler's iterator: another one is another pass (persistent workers)."""
        self.number = 0
        self.epoch = -1
        self.position = 0
        """Batches taken in this pass."""
        self.step = 0
        """Under way when the last was taken."""
        self.ends: list[int] = []
        """Positions at the ends of the pass's first two steps."""
        self.flags = flags_of(loader)
        self.account: Pass | None = None
        """Of its last pass, for the ledger of samples."""
        self.resumed: tuple[object, Account] | None = None
        """A pass, by its source, that is the rest of an earlier attempt's."""


class Noted(NamedTuple):
    """A batch that was taken. It holds on to nothing of its loader: scripts may make one iterator a step."""

    step: int
    """Under way."""
    why: str
    """Why the indices cannot be named; empty: they can, as far as is known."""
    number: int
    """Of the pass; …"""
    epoch: int
    """… which is this one for the sampler; -1 unknown."""
    position: int
    """In the pass, from 1."""
    indices: object


class Kept:
    """The last batches of one loader: those of an evaluation do not push out those of training."""

    def __init__(self) -> None:
        self.batches: deque[Noted] = deque()
        self._size = 0

    def add(self, noted: Noted) -> None:
        """Take the newest in, and let go of the oldest."""
        self.batches.append(noted)
        self._size += _size_of(noted.indices)
        while len(self.batches) > MAX_KEPT or self._size > MAX_KEPT_INDICES:
            self._size -= _size_of(self.batches.popleft().indices)


class Trail:
    """One rank's. The training thread alone calls what is here; nothing raises."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._kept: dict[str, Kept] = {}
        """By loader, at most MAX_LOADERS of them."""
        self._last = ""
        """The loader of the last batch."""
        self._passes = 0
        self._backwards: dict[str, int] = {}
        """Loaders → calls of backward() after a batch of theirs."""
        self._ahead: dict[str, int] = {}
        """Loaders → batches that are taken before they are trained on."""
        self._sent = 0
        self.ledger: SampleLedger | None = SampleLedger(rank)
        """None once it has failed."""

    def note(self, state: dict[str, Any], indices: object) -> None:
        """A batch has been taken. state: the iterator's __dict__; indices: None unknown. A microsecond."""
        stream = state.get(STREAM)
        if stream is not None:
            try:
                self._note(stream, state, indices)
            except Exception as error:  # A sampler's attributes are the script's.
                self._rank.fail("batches", error)

    def _note(self, stream: Stream, state: dict[str, Any], indices: object) -> None:
        step = self._rank.words[_STEP] + 1
        source = state.get("_sampler_iter")
        if source is not stream.source or not stream.number:
            self._begin_pass(stream, source, find_epoch(state.get("_index_sampler")))
        elif step != stream.step and len(stream.ends) < 2:
            stream.ends.append(stream.position)
            if len(stream.ends) == 2:
                first, second = stream.ends
                self._ahead[stream.key] = first - (second - first)
        stream.step = step
        stream.position += 1
        self._last = stream.key
        kept = self._kept.get(stream.key)
        if kept is None:
            if len(self._kept) >= MAX_LOADERS:
                least = min(self._kept, key=lambda key: self._backwards.get(key, 0))
                for known in (self._kept, self._backwards, self._ahead):
                    known.pop(least, None)
            kept = self._kept[stream.key] = Kept()
        why, handed = stream.why, indices
        if _size_of(indices) > MAX_BATCH:
            why, indices = TOO_LARGE, None
        elif not _may_be_kept(indices):
            why, indices = why or NOT_PLAIN, None
        kept.add(Noted(step, why, stream.number, stream.epoch, stream.position, indices))
        ledger = self.ledger
        if ledger is not None:
            try:
                ledger.note(stream, state.get("_index_sampler"), step, handed)
            except Exception as error:  # no room, for example
                self.ledger = None
                self._rank.fail("ledger", error)

    def end(self, state: dict[str, Any]) -> None:
        """A pass is over. state: the iterator's __dict__."""
        stream = state.get(STREAM)
        if stream is not None and self.ledger is not None:
            try:
                self.ledger.end(stream, self._rank.words[_STEP] + 1)
            except Exception as error:
                self._rank.fail("ledger", error)

    def _begin_pass(self, stream: Stream, source: Any, epoch: int | None) -> None:
        self._passes += 1
        stream.source, stream.number, stream.position, stream.ends = source, self._passes, 0, []
        stream.epoch = -1 if epoch is None else epoch

    def note_save(self, own_steps: int, step: int, began_ns: int, size: int, mtime_ns: int) -> None:
        """A save is done, of that file. Any thread may tell."""
        if self.ledger is not None:
            self.ledger.note_save(own_steps, step, began_ns, size, mtime_ns)

    def on_backward(self) -> None:
        """Gradients are computed, of what was taken last."""
        self._backwards[self._last] = self._backwards.get(self._last, 0) + 1

    def send_batches(self, step: int) -> None:
        """Have the supervisor know the batches around a step that is not finite. step: as Field.STEP counts."""
        if self._sent >= MAX_SENT:
            return
        self._sent += 1
        try:
            self._rank.send("BatchesNamed", **self.describe(step))
        except Exception as error:
            self._rank.fail("batches", error)

    def describe(self, step: int) -> dict[str, Any]:
        """The fields of messages.BatchesNamed."""
        rank = self._rank
        base = rank.step_now() - rank.words[_STEP]
        origin = rank.origin.describe(step) if rank.origin is not None else ""
        found: dict[str, Any] = {"step": step + base, "origin": origin}
        found |= {"loader": "", "why": NO_LOADER, "ahead": 0, "batches": []}
        near: dict[str, list[Noted]] = {}
        for key, kept in self._kept.items():
            batches = [one for one in kept.batches if step - STEPS_BEFORE <= one.step <= step + STEPS_AFTER]
            if batches:
                near[key] = batches
        if not near:
            return found
        key = max(near, key=lambda each: self._backwards.get(each, 0))
        own = near.pop(key)
        found["loader"], found["ahead"] = key, self._ahead.get(key, 0)
        known = (one.why for one in own if one.why)
        found["why"] = next(known, "") or _why_not_plain([one.indices for one in own])
        if _has_several(own) or any(len({one.step for one in batches}) > 1 for batches in near.values()):
            found["why"] = found["why"] or SEVERAL
        found["batches"] = _name(own, base)
        return found


def _has_several(own: list[Noted]) -> bool:
    """Whether they are of loaders that are iterated over at one and the same place, as zip() does, step by step."""
    passes: dict[int, set[int]] = {}
    for one in own:
        passes.setdefault(one.step, set()).add(one.number)
    return sum(1 for numbers in passes.values() if len(numbers) > 1) > 1


def _name(own: list[Noted], base: int) -> list[tuple[int, int, int, int, list[int]]]:
    """Batches as messages.BatchesNamed has them: the last ones."""
    left, found = MAX_NAMED_INDICES, list[tuple[int, int, int, int, list[int]]]()
    for one in reversed(own):
        named = name_indices(one.indices) or []
        left -= len(named)
        if left < 0:
            break
        found.append((one.step + base, one.number, one.epoch, one.position, named))
    return found[::-1]


def find_epoch(sampler: Any) -> int | None:
    """The epoch that a sampler, or one of those that it is made of, was told."""
    for _ in range(4):
        if sampler is None:
            return None
        epoch = getattr(sampler, "epoch", None)
        if isinstance(epoch, int):
            return epoch
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return None


def name_indices(indices: object) -> list[int] | None:
    """What a sampler handed out for a batch, where that is a plain number (batch_size=None) or a list of them."""
    if type(indices) is int:
        return [indices]
    if type(indices) not in (list, tuple):
        return None
    items: list[int] = list(indices)  # type: ignore[call-overload]
    return items if items and all(type(item) is int for item in items) else None


def _may_be_kept(indices: object) -> bool:
    """Numbers: what else a sampler hands out may be the samples themselves, and is let go of."""
    if type(indices) in (list, tuple):
        items: list[object] = indices  # type: ignore[assignment]
        return bool(items) and type(items[0]) is int and type(items[-1]) is int
    return type(indices) is int


def _size_of(indices: object) -> int:
    return len(indices) if isinstance(indices, list | tuple) else 1


def _why_not_plain(batches: list[object]) -> str:
    if any(name_indices(indices) is None for indices in batches):
        return NOT_PLAIN
    lists = [id(indices) for indices in batches if isinstance(indices, list)]
    return SAME_LIST if len(set(lists)) < len(lists) else ""


def _why_unnamed(loader: Any) -> str:
    if getattr(loader, "_dataset_kind", 0) == ITERABLE:
        return HAS_NO_INDICES
    is_ordered = getattr(loader, "in_order", True) or not getattr(loader, "num_workers", 0)
    return "" if is_ordered else ANY_ORDER


_KEYS: dict[tuple[object, ...], str] = {}


def find_key(loader: Any) -> str:
    """Tell a script's loaders apart, the same way in each attempt: by where they are iterated over, and over what.

    What resuming may change (a sampler that leaves out the beginning) is no part of it, and nothing of the script is
    called.
    """
    places: list[object] = [type(loader.dataset).__qualname__]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(places) < MAX_PLACES:
        code = frame.f_code
        # Of loaders that wrap others (__iter__), resuming may put another kind there; torch's own makes iterators at
        # other lines where the number of workers is another.
        is_special = code.co_name.startswith("__") and code.co_name.endswith("__")
        if not is_special and frame.f_globals.get("__name__") != LOADERS:
            places += (code.co_filename, code.co_name, frame.f_lineno)
        frame = frame.f_back
    known = tuple(places)
    key = _KEYS.get(known)
    if key is None:
        if len(_KEYS) >= MAX_KEYS:
            _KEYS.clear()
        text = "\n".join(map(str, places)).encode("utf-8", "replace")
        key = _KEYS[known] = blake2b(text, digest_size=8).hexdigest()
    return key


def install(kind: Any, rank: Rank) -> None:
    """Know each iterator's loader. kind: torch's _BaseDataLoaderIter."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if get_ident() != rank.code_ident:  # no pass of training's: its batches are neither known nor left out
                self.__dict__[STREAM] = Stream(loader)
        except Exception as error:
            rank.fail("batches", error)
        original(self, loader, *args, **kwargs)

    kind.__init__ = __init__
