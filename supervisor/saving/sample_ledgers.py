"""What had been handed out to the ranks when each checkpoint was written: the run directory's `data-ledger.json`.

Of the newest MAX_SAVES saves, by the files that they wrote (their times and sizes, which renaming keeps). Nothing is
ever written into the checkpoints' own folders. Before an attempt the account of its checkpoint goes into the socket
folder, where ranks find it (hooks/data/data_replay.py). What is between nodes is in fleet_sample_ledgers.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.ledger_page import consumed_name
from guardrun.hooks.wire.messages import CheckpointSaved
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import read_own, write_own
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.collect.ranks.ledgers import (
    ALL_NS,
    LoaderAccount,
    Place,
    SaveSeen,
    find_accounts,
    find_places,
    read_rings,
    read_saves,
    stat_identity,
)
from guardrun.supervisor.engine.model.events import Checkpoint
from guardrun.supervisor.engine.recovery.data_replay import MAX_RANKS
from guardrun.supervisor.node.run_context import RunContext
from guardrun.supervisor.saving.snapshot_files import Written
from guardrun.supervisor.saving.snapshot_sets import Copy

FILE = "data-ledger.json"
MAX_SAVES = 64
MAX_FILES = 64
"""Of a save, and of a checkpoint that is looked up."""
MAX_PLACES = 4096
"""Of ranks, in all saves: of many ranks fewer saves are kept."""
FEWEST_SAVES = 4
NO_ACCOUNT = "no account was kept of what had been handed out when this checkpoint was written"
OTHER_SIZE = "there were {before} ranks, and now there are {now}"


class SaveAccount(msgspec.Struct, kw_only=True):
    """At one save; or at several of the same step."""

    attempt: int
    done: int
    """Steps of that attempt."""
    step: int
    """With those before it."""
    saver: int
    began_ns: int
    """CLOCK_MONOTONIC."""
    world_size: int
    files: list[tuple[int, int]] = []
    """mtime_ns and size of each that was written."""
    loaders: list[LoaderAccount] = []


class SampleLedgers:
    """Of one run. Runs on the loop's thread, but for what says otherwise."""

    def __init__(self, node: RunContext, sockets: Path) -> None:
        self._node, self._sockets = node, sockets
        self._path = node.run_dir / FILE
        self._lock = threading.Lock()
        """Held while a save is noted."""
        self._saves = _read(self._path)
        self._is_keeping = False
        self._has_loaders = any(save.loaders for save in self._saves)
        self._resumed: list[LoaderAccount] = []
        """What the current attempt began with."""

    def saved(self, message: CheckpointSaved, ranks: Sequence[int]) -> None:
        """A rank of the current attempt has saved. ranks: all of them."""
        seen = seen_of(message)
        self.note(message.attempt, message.global_rank, seen, self._places(message.attempt, ranks, seen.own_steps))

    def saved_in_time(
        self, attempt: int, rank: int, own_steps: int, checkpoint: Checkpoint, ranks: Sequence[int]
    ) -> None:
        """A rank has saved before the ranks are ended. own_steps: as Field.STEP of its board counts."""
        if (seen := in_time_of(own_steps, checkpoint)) is not None:
            self.note(attempt, rank, seen, self._places(attempt, ranks, own_steps))

    def written_from_memory(self, attempt: int, written: Written, ranks: Sequence[int]) -> None:
        """A snapshot that ranks have left was written out. For a thread that may wait, as find()."""
        for seen in saves_in(written):
            self.note(attempt, _last(written).global_rank, seen, self._places(attempt, ranks, seen.own_steps))

    def find(self, files: Sequence[str]) -> SaveAccount | None:
        """The account of a checkpoint that these files make up; None: there is none. For a thread that may wait."""
        looks = {look for file in files[:MAX_FILES] if (look := stat_identity(file)) is not None}
        found = [save for save in list(self._saves) if any(tuple(file) in looks for file in save.files)]
        agree = all(save.loaders == found[0].loaders for save in found)
        return found[-1] if found and agree else None

    def refresh(self, attempt: int, ranks: Sequence[int]) -> None:
        """An attempt is over: what was not told, or not taken yet by the time of a save, is known by now."""
        known = self.known_files(attempt)
        for rank in ranks:
            for seen in read_saves(self._sockets, attempt, rank):
                if (seen.mtime_ns, seen.size) not in known:
                    self.note(attempt, rank, seen, self._places(attempt, ranks, seen.own_steps))
        steps = {save.done for save in self._saves if save.attempt == attempt and _is_open_ended(save)}
        rings = {rank: read_rings(self._sockets, attempt, rank) for rank in ranks if steps}
        for done in steps:
            self.improve(attempt, done, {rank: find_places(own, done) for rank, own in rings.items()})

    def known_files(self, attempt: int) -> set[tuple[int, int]]:
        """Of its saves that were noted: mtime_ns and size."""
        return {file for save in self._saves if save.attempt == attempt for file in save.files}

    def improve(self, attempt: int, done: int, places: Mapping[int, Sequence[Place]]) -> None:
        """After these steps it was so, as is known better now. places: of all ranks."""
        for save in self._saves:
            if (save.attempt, save.done) == (attempt, done) and _is_open_ended(save):
                loaders = find_accounts(places, done, save.saver, save.began_ns)
                if _is_better(loaders, save.loaders):
                    save.loaders = loaders
        self._keep()

    def hand_on(self, attempt: int, checkpoint: Checkpoint, account: SaveAccount | None, *, world_size: int) -> None:
        """Leave the account for the ranks of an attempt that resumes."""
        if (fields := self.make_fields(checkpoint, account, world_size=world_size)) is not None:
            leave(self._sockets, attempt, encode_json(fields))

    def make_fields(
        self, checkpoint: Checkpoint, account: SaveAccount | None, *, world_size: int
    ) -> dict[str, Any] | None:
        """What the ranks of an attempt are to be told of its checkpoint, as hooks/data/data_replay.py reads it.

        None: nothing, as they take nothing from data loaders.
        """
        self._resumed = account.loaders if account is not None else []
        if account is not None and not account.loaders and account.done:
            account = None
        if (account is None and not self._has_loaders) or (account is not None and not account.loaders):
            return None
        why = NO_ACCOUNT if account is None else ""
        if account is not None and account.world_size != world_size:
            why = OTHER_SIZE.format(before=account.world_size, now=world_size)
        ranks = {} if account is None or why else _by_rank(account)
        config = self._node.run_file.config
        acts = bool(config.get("checkpoint", {}).get("exact_data")) and config.get("policy", {}).get("act") is not False
        return {"acts": acts, "why": why, "step": checkpoint.step, "ranks": ranks}

    def note(self, attempt: int, rank: int, seen: SaveSeen, places: Mapping[int, Sequence[Place]]) -> None:
        """A rank has saved. places: of all ranks, by the steps that it had done. For any thread."""
        if seen.own_steps < 0 or seen.mtime_ns <= 0 or not 0 < len(places) <= MAX_RANKS:
            return
        loaders = find_accounts(places, seen.own_steps, rank, seen.began_ns)
        account = SaveAccount(
            attempt=attempt,
            done=seen.own_steps,
            step=seen.step,
            saver=rank,
            began_ns=seen.began_ns,
            world_size=len(places),
            loaders=loaders if seen.own_steps or loaders else self._resumed,
        )
        with self._lock:
            known = next((one for one in self._saves if _is_same(one, account)), None)
            if known is None:
                self._saves = [*self._saves, account][-max(FEWEST_SAVES, min(MAX_SAVES, MAX_PLACES // len(places))) :]
            else:
                account = known
            if len(account.files) < MAX_FILES:
                account.files.append((seen.mtime_ns, seen.size))
            self._has_loaders = self._has_loaders or bool(account.loaders)
        self._keep()

    def _places(self, attempt: int, ranks: Sequence[int], done: int) -> dict[int, list[Place]]:
        return read_places(self._sockets, attempt, ranks, done) if done >= 0 else {}

    def _keep(self) -> None:
        """Soon, and once for all that has changed by then."""
        if not self._is_keeping:
            self._is_keeping = True
            if not self._node.writer.put(self._write):
                self._is_keeping = False

    def _write(self) -> None:
        self._is_keeping = False
        try:
            write_own(self._path, encode_json(msgspec.to_builtins(self._saves, str_keys=True)))
        except OSError as error:
            log.warning("data_ledger_not_written", error=str(error))


def leave(sockets: Path, attempt: int, account: bytes) -> None:
    """Where an attempt's ranks look for it; without it nothing is skipped, or told."""
    try:
        (sockets / consumed_name(attempt)).write_bytes(account)
    except OSError as error:
        log.warning("data_ledger_not_handed_on", error=str(error))


def read_places(sockets: Path, attempt: int, ranks: Sequence[int], done: int) -> dict[int, list[Place]]:
    """Of ranks of this node: how far each was with its loaders when so many steps were done."""
    return {rank: find_places(read_rings(sockets, attempt, rank, done), done) for rank in ranks}


def seen_of(message: CheckpointSaved) -> SaveSeen:
    """A save that a rank has told of."""
    return SaveSeen(message.own_steps, message.step, message.began_ns, message.size, message.mtime_ns)


def in_time_of(own_steps: int, checkpoint: Checkpoint) -> SaveSeen | None:
    """One that a rank has made before the ranks are ended, and that is there; None: it is not."""
    look = stat_identity(checkpoint.path)
    return SaveSeen(own_steps, checkpoint.step, ALL_NS, look[1], look[0]) if look is not None else None


def saves_in(written: Written) -> list[SaveSeen]:
    """The files of a snapshot that was written out, each as if a rank had saved it when the last copy was made."""
    if written.whole is None or not (last := _last(written).record).is_counted:
        return []
    looks = [look for path in written.paths if (look := stat_identity(path)) is not None]
    return [SaveSeen(last.at, written.step, last.written_ns, look[1], look[0]) for look in looks]


def _last(written: Written) -> Copy:
    assert written.whole is not None
    return max(written.whole.copies, key=lambda copy: copy.record.written_ns)


def _read(path: Path) -> list[SaveAccount]:
    try:
        return msgspec.json.decode(read_own(path), type=known_type(list[SaveAccount]))[-MAX_SAVES:]
    except (OSError, msgspec.DecodeError):  # none yet, or none of ours
        return []


def _is_same(one: SaveAccount, other: SaveAccount) -> bool:
    ended = [[loader.is_ended for loader in save.loaders] for save in (one, other)]
    return (one.attempt, one.done) == (other.attempt, other.done) and ended[0] == ended[1]


def _by_rank(account: SaveAccount) -> dict[str, list[dict[str, Any]]]:
    """As hooks/data/data_replay.Account reads it."""
    found: dict[str, list[dict[str, Any]]] = {str(rank): [] for rank in range(account.world_size)}
    for loader in account.loaders:
        about = {
            "key": loader.key,
            "epoch": loader.epoch,
            "is_ended": loader.is_ended,
            "is_apart": loader.is_apart,
            "is_plain": loader.is_plain,
            "why": loader.why,
        }
        for rank, own in loader.ranks.items():
            found[str(rank)].append({**about, **msgspec.to_builtins(own, str_keys=True)})
    return found


def _is_open_ended(save: SaveAccount) -> bool:
    """Whether it was not seen what some rank took next, by which it shows where a script goes on by itself."""
    known = [own for loader in save.loaders for own in loader.ranks.values() if own.near]
    return any(own.batches + 1 not in own.near for own in known)


def _is_better(after: list[LoaderAccount], before: list[LoaderAccount]) -> bool:
    """Whether nothing of what was known before has been written over since."""
    if [one.key for one in after] != [one.key for one in before]:
        return False
    return not any(one.why and not other.why for one, other in zip(after, before, strict=True))
