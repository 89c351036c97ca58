"""What a rank's data loaders have handed out, from its ledger page: read at a save, while its hooks may write it."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.hooks.wire import ledger_page as page
from guardrun.hooks.wire.ledger_page import Flag, Head, Record, SaveRecord, ledger_name
from guardrun.supervisor.base.shared_pages import PageFile

_HEAD = struct.Struct(f"<{page.HEAD_WORDS}q")
_RECORD = struct.Struct(f"<{page.RECORD_WORDS}q")
_SAVE = struct.Struct(f"<{page.SAVE_WORDS}q")
FEW = 160
"""Batches that are read at a save: twice those that may have been taken since, and in the steps before."""
RECENT = 64
"""Steps: a loader from which none of them took a batch is not trained on any more."""
NEAR = range(-3, 9)
"""Batches around the checkpoint's, of which checksums are kept: by these it shows where a script goes on by itself."""
OVER = "its pass was over at the checkpoint"
IN_TURN = "steps take batches from several data loaders in turn"
ONE_OVER = "one of several data loaders was at the end of its pass"
NOT_PLAIN = "a batch is fetched before the one before it is trained on, or several to a backward()"
UNNAMED = "what its sampler hands out does not tell batches apart"
UNEQUAL = "ranks had taken unequal numbers of batches"
ALL_NS = 1 << 62
"""Whatever has ended had ended by then."""


class Ring(NamedTuple):
    """The last batches of one loader."""

    key: str
    records: list[tuple[int, ...]]
    """As Record has them, oldest first."""


class SaveSeen(NamedTuple):
    """A save, as SaveRecord has it."""

    own_steps: int
    step: int
    began_ns: int
    size: int
    mtime_ns: int


class RankAccount(msgspec.Struct, frozen=True):
    """How far a rank was in a pass over a loader."""

    batches: int
    samples: int
    digest: int
    first: int
    near: dict[int, int] = {}
    """How many batches → the checksum of these; of some around `batches`."""


class LoaderAccount(msgspec.Struct, frozen=True):
    """How far all ranks were in their passes over a loader, when a checkpoint's steps were done."""

    key: str
    epoch: int
    """-1: not known."""
    is_ended: bool
    is_apart: bool
    """One pass over it is told from the next."""
    is_plain: bool
    """A backward() has followed on each batch."""
    why: str
    """Why what was trained on can't be skipped; empty: nothing speaks against it."""
    ranks: dict[int, RankAccount] = {}


def read_rings(sockets: Path, attempt: int, rank: int, since: int = 0) -> list[Ring]:
    """What a rank's page has; empty where there is none, none of ours, or where some loaders had no room in it.

    since: a step; a few batches from before it are enough. At a save, all of them would take a millisecond each.
    """
    file = PageFile(sockets / ledger_name(attempt, rank), page.SIZE_BYTES, page.MAGIC, _HEAD)
    try:
        head = file.head()
        if head is None or head[Head.MISSED]:
            return []
        return [_read_ring(file, slot, since) for slot in range(min(max(0, head[Head.LOADERS]), page.LOADERS))]
    except OSError:
        return []
    finally:
        file.close()


def read_saves(sockets: Path, attempt: int, rank: int) -> list[SaveSeen]:
    """The last saves that a rank's page has, oldest first; those that a rank did not live to tell of among them."""
    file = PageFile(sockets / ledger_name(attempt, rank), page.SIZE_BYTES, page.MAGIC, _HEAD)
    try:
        head = file.head()
        data = file.read(_SAVE.size * page.SAVES, 8 * page.SAVES_AT) if head is not None else b""
        if head is None or len(data) != _SAVE.size * page.SAVES:
            return []
        numbers = range(max(0, head[Head.SAVES] - page.SAVES), head[Head.SAVES])
        found = [_SAVE.unpack_from(data, _SAVE.size * (number % page.SAVES)) for number in numbers]
        return [_save_of(words) for words in found if min(words) >= 0]
    except OSError:
        return []
    finally:
        file.close()


def _save_of(words: Sequence[int]) -> SaveSeen:
    return SaveSeen(
        own_steps=words[SaveRecord.OWN_STEPS],
        step=words[SaveRecord.STEP],
        began_ns=words[SaveRecord.BEGAN_NS],
        size=words[SaveRecord.SIZE],
        mtime_ns=words[SaveRecord.MTIME_NS],
    )


def _read_ring(file: PageFile, slot: int, since: int) -> Ring:
    found = _read_last(file, slot, FEW) if since else None
    if found is None or not found.records or found.records[0][Record.STEP] >= since:
        found = _read_last(file, slot, page.RECORDS)
    return found


def _read_last(file: PageFile, slot: int, most: int) -> Ring:
    place = Head.FIRST + 2 * slot
    before = file.head() or (0,) * page.HEAD_WORDS
    count = max(0, before[place + 1])
    begin, size = 8 * (page.HEAD_WORDS + page.RECORD_WORDS * page.RECORDS * slot), _RECORD.size
    first = max(0, count - most)
    turn = min(count, first + page.RECORDS - first % page.RECORDS)
    """The first that lies at the ring's beginning again."""
    data = file.read((turn - first) * size, begin + first % page.RECORDS * size)
    data += file.read((count - turn) * size, begin)
    after = file.head() or before
    if len(data) != (count - first) * size:
        return Ring("", [])
    # What was being written meanwhile is neither the old record nor the new one.
    lost = max(0, after[place + 1] + 1 - page.RECORDS - first)
    found = list(_RECORD.iter_unpack(data))[lost:]
    return Ring(f"{before[place]:x}", [words for words in found if _is_sound(words)])


def _is_sound(words: Sequence[int]) -> bool:
    """Whether a rank can have written it."""
    counts = (Record.STEP, Record.PASS, Record.BATCHES, Record.SAMPLES, Record.DIGEST, Record.GAPS, Record.TRAINED)
    return all(words[place] >= 0 for place in counts)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rank was with a loader when some steps were done: of the last batch that was taken for one of them."""

    key: str
    step: int
    """For which it was taken; this and what follows: as Record has it."""
    epoch: int
    batches: int
    samples: int
    digest: int
    first: int
    gaps: int
    flags: int
    is_trained: bool
    """A backward() follows on its batches: no evaluation has one."""
    ended_ns: int = 0
    """When the pass ended right after that batch, on its node's CLOCK_MONOTONIC; 0: it did not."""
    near: dict[int, int] = {}
    """As RankAccount has it."""


def find_places(rings: Sequence[Ring], done: int) -> list[Place]:
    """How far a rank was with each of its loaders, when so many steps of the attempt were done."""
    found = [(ring, _last(ring, done)) for ring in rings]
    return [_place(ring, at) for ring, at in found if at is not None]


def _place(ring: Ring, at: int) -> Place:
    record = ring.records[at]
    return Place(
        key=ring.key,
        step=record[Record.STEP],
        epoch=record[Record.EPOCH],
        batches=record[Record.BATCHES],
        samples=record[Record.SAMPLES],
        digest=record[Record.DIGEST],
        first=record[Record.FIRST],
        gaps=record[Record.GAPS],
        flags=record[Record.FLAGS],
        is_trained=_is_trained(ring, at),
        ended_ns=_ended_ns(ring, at),
        near=_near(ring, record),
    )


def find_accounts(
    places: Mapping[int, Sequence[Place]], done: int, saver: int, began_ns: int = ALL_NS
) -> list[LoaderAccount]:
    """What had been handed out for the steps that a checkpoint holds; empty: nothing that was trained on.

    places: of all ranks. done: steps of the attempt, as the saver counts. began_ns: when the save began, on the saver's
    node.
    """
    recent = {one.key: one for one in places.get(saver, ()) if one.is_trained}
    active = {key: one for key, one in recent.items() if one.step == done}
    if not active:
        return []
    ended = {key for key, one in active.items() if 0 < one.ended_ns <= began_ns}
    why = IN_TURN if len(active) < len(recent) else ONE_OVER if ended and len(active) > 1 else ""
    return [_account(places, active[key], is_ended=key in ended, why=why) for key in sorted(active)]


def _account(places: Mapping[int, Sequence[Place]], first: Place, *, is_ended: bool, why: str) -> LoaderAccount:
    """first: the saver's."""
    known = dict[int, Place]()
    for rank, all_of in places.items():
        place = next((one for one in all_of if one.key == first.key), None)
        if place is None or place.step != first.step:
            why = why or f"what rank {rank} was handed out for these steps is not known"
        else:
            known[rank] = place
    is_plain = not any(place.gaps for place in known.values())
    if not why and any(place.batches != first.batches for place in known.values()):
        why = UNEQUAL
    if not why and any(place.flags & Flag.UNNAMED for place in known.values()):
        why = UNNAMED
    if not why:
        why = OVER if is_ended else "" if is_plain else NOT_PLAIN
    is_apart = all(place.flags & Flag.APART for place in known.values())
    ranks = {
        rank: RankAccount(one.batches, one.samples, one.digest, one.first, one.near) for rank, one in known.items()
    }
    return LoaderAccount(first.key, first.epoch, is_ended, is_apart, is_plain, why, ranks)


def _last(ring: Ring, done: int) -> int | None:
    """The last batch that was taken for one of these steps, where that is one of the last."""
    for at in range(len(ring.records) - 1, -1, -1):
        record = ring.records[at]
        if record[Record.STEP] <= done and not record[Record.FLAGS] & Flag.ENDED:
            return at if record[Record.STEP] > done - RECENT else None
    return None


def _is_trained(ring: Ring, at: int) -> bool:
    last = ring.records[at]
    recent = [one for one in ring.records[: at + 1] if one[Record.STEP] > last[Record.STEP] - RECENT]
    is_first = not last[Record.TRAINED] and not any(one[Record.GAPS] for one in recent)
    return is_first or any(one[Record.TRAINED] for one in recent)


def _ended_ns(ring: Ring, at: int) -> int:
    after = ring.records[at + 1] if at + 1 < len(ring.records) else None
    if after is None or not after[Record.FLAGS] & Flag.ENDED or after[Record.PASS] != ring.records[at][Record.PASS]:
        return 0
    return max(0, after[Record.AT_NS])


def _near(ring: Ring, record: Sequence[int]) -> dict[int, int]:
    if record[Record.FLAGS] & Flag.UNNAMED:
        return {}
    batches = record[Record.BATCHES]
    return {
        one[Record.BATCHES]: one[Record.DIGEST]
        for one in ring.records
        if one[Record.PASS] == record[Record.PASS] and one[Record.BATCHES] - batches in NEAR
    }


def stat_identity(path: str) -> tuple[int, int] | None:
    """(mtime_ns, size) of a file, by which it is told also under another name; None: it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size
