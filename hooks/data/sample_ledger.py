"""What each data loader has handed out to the training thread so far: counts and a checksum a batch, never samples.

After an attempt's end the supervisor reads from the page (hooks/wire/ledger_page.py) how far each pass had got when the
steps of a checkpoint were done. Whatever is written here is of plain numbers; a batch takes two microseconds.

Only the training thread calls what is here; nothing raises into it (batch_trail sees to that).
"""

from __future__ import annotations

import os
import struct
import sys
from time import monotonic_ns
from typing import Any

from guardrun.hooks.calls.shared_file import SharedPage
from guardrun.hooks.data.samplers import has_random_passes, has_state
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.ledger_page import (
    HEAD_WORDS,
    LOADERS,
    MAGIC,
    RECORD_WORDS,
    RECORDS,
    SAVE_WORDS,
    SAVES,
    SAVES_AT,
    SIZE_BYTES,
    Flag,
    Head,
    ledger_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from guardrun.hooks.data.batch_trail import Stream
    from guardrun.hooks.data.data_replay import Account

MOST_INDICES = 64
"""Of a batch."""
PASSED_BY = ("guardrun", "torch", "tqdm")
"""Packages that may stand between a loader and the script that iterates over it."""
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_BODY = struct.Struct(f"<{RECORD_WORDS}q")
_SAVE = struct.Struct(f"<{SAVE_WORDS}q")
_MASK = (1 << 63) - 1
_ENDED, _UNNAMED, _APART = int(Flag.ENDED), int(Flag.UNNAMED), int(Flag.APART)


def add_to(digest: int, indices: object) -> tuple[int, int] | None:
    """The checksum (63 bits) of what digest is of and of one more batch, and its samples; None: it has no numbers.

    The same in each process: numbers' own hash depends on nothing else.
    """
    if type(indices) is int:
        return hash((digest, 1, indices)) & _MASK, 1
    if type(indices) not in (list, tuple) or not indices or type(indices[0]) is not int:  # type: ignore[index]
        return None
    size = len(indices)  # type: ignore[arg-type]
    try:
        return hash((digest, size, *indices[:MOST_INDICES])) & _MASK, size  # type: ignore[index]
    except TypeError:  # what is no number may have no hash
        return None


def number_of(key: str) -> int:
    """A loader's key (batch_trail.find_key) as the page has it."""
    return int(key, 16) & _MASK


class Pass:
    """One over a loader, so far."""

    __slots__ = (
        "backwards", "batches", "digest", "epoch", "first", "flags", "gaps", "number", "samples", "slot", "taken",
        "trained",
    )  # fmt: skip

    def __init__(self, number: int, slot: int, epoch: int, flags: int) -> None:
        self.number, self.slot, self.epoch, self.flags = number, slot, epoch, flags
        self.batches = self.samples = self.digest = self.first = 0
        self.gaps = self.trained = self.backwards = 0
        self.taken = False
        """A batch was, in this attempt."""

    def skip(self, account: Account) -> None:
        """It goes on where an earlier attempt's was."""
        self.batches, self.samples = account.batches, account.samples
        self.digest, self.first = account.digest, account.first


class SampleLedger:
    """One rank's."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._page: SharedPage | None = None
        self._slots: dict[str, int] = {}
        """Loaders with a ring; -1: there is no room for this one."""
        self._counts = [0] * LOADERS
        self._firsts: dict[int, int] = {}
        """Loaders, by slot → what their last pass began with."""

    def note(self, stream: Stream, sampler: Any, step: int, indices: object) -> None:
        """A batch was taken. step: under way; indices: what the sampler handed out, None: unknown. Raises OSError."""
        one = stream.account
        if one is None or one.number != stream.number:
            one = stream.account = self._begin(stream, sampler)
        if one.slot < 0:
            return
        backwards = self._rank.pace.backwards
        if one.taken:
            if backwards == one.backwards:
                one.gaps += 1
            else:
                one.trained += 1
        one.backwards = backwards
        added = add_to(one.digest, indices)
        if added is None:
            one.flags |= _UNNAMED
            one.samples += 1
        else:
            one.digest = added[0]
            one.samples += added[1]
        one.batches += 1
        if not one.taken:
            one.taken = True
            self._see_first(one)
        self._write(one, step, 0)

    def end(self, stream: Stream, step: int) -> None:
        """The pass is over."""
        one = stream.account
        if one is not None and one.number == stream.number and one.slot >= 0 and not one.flags & _ENDED:
            one.flags |= _ENDED
            self._write(one, step, monotonic_ns())

    def note_save(self, *words: int) -> None:
        """A save is done: as SaveRecord has it. Any thread may tell."""
        page = self._page
        if page is not None:
            count = page.words[Head.SAVES]
            _SAVE.pack_into(page.bytes, 8 * (SAVES_AT + SAVE_WORDS * (count % SAVES)), *words, 0, 0, 0)
            page.words[Head.SAVES] = count + 1

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _begin(self, stream: Stream, sampler: Any) -> Pass:
        slot = self._slots.get(stream.key)
        if slot is None:
            slot = self._add_loader(stream.key)
        flags = stream.flags
        if stream.why:
            flags |= _UNNAMED
        # A later epoch was told, or the order comes from torch's own random numbers.
        if stream.epoch >= 1 or has_random_passes(sampler):
            flags |= _APART
        one = Pass(stream.number, slot, stream.epoch, flags)
        if stream.resumed is not None and stream.resumed[0] is stream.source:
            one.skip(stream.resumed[1])
        stream.resumed = None
        return one

    def _see_first(self, one: Pass) -> None:
        if one.batches == 1:
            one.first = one.digest
        before = self._firsts.get(one.slot)
        if before is not None and before != one.first:
            one.flags |= _APART
        self._firsts[one.slot] = one.first

    def _add_loader(self, key: str) -> int:
        page = self._page = self._page or self._make_page()
        slot = len(self._slots)
        if slot >= LOADERS:
            page.words[Head.MISSED] += 1
            slot = -1
        else:
            page.words[Head.FIRST + 2 * slot] = number_of(key)
            page.words[Head.LOADERS] = slot + 1
        if len(self._slots) < 4 * LOADERS:
            self._slots[key] = slot
        return slot

    def _make_page(self) -> SharedPage:
        rank = self._rank
        path = os.path.join(rank.sockets, ledger_name(rank.attempt, rank.global_rank))
        return SharedPage(path, SIZE_BYTES, MAGIC, rank.pid)

    def _write(self, one: Pass, step: int, at_ns: int) -> None:
        page, slot = self._page, one.slot
        if page is None:
            return
        count = self._counts[slot]
        at = 8 * (HEAD_WORDS + RECORD_WORDS * (slot * RECORDS + count % RECORDS))
        _BODY.pack_into(
            page.bytes, at, step, one.number, one.epoch, one.batches, one.samples, one.digest, one.first, one.gaps,
            one.trained, at_ns, one.flags, 0,
        )  # fmt: skip
        self._counts[slot] = page.words[_COUNT + 2 * slot] = count + 1


_COUNT = int(Head.FIRST) + 1


def flags_of(loader: Any) -> int:
    """What of Flag's bits is known as soon as a loader is iterated over; by the thread that does."""
    try:
        flags = int(Flag.STATEFUL) if has_state(loader) else 0
    except Exception:  # attributes of the script's own kind
        flags = int(Flag.STATEFUL)
    return flags | (int(Flag.FRAMEWORK) if _is_frameworks(sys._getframe(1)) else 0)


def _is_frameworks(frame: FrameType | None) -> bool:
    """Whether it is an installed package that iterates, rather than the script."""
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root not in PASSED_BY:
            return any(part in frame.f_code.co_filename for part in INSTALLED)
        frame = frame.f_back
    return False
