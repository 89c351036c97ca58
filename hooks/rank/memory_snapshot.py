"""Copies of a rank's state in memory that outlives it, for hooks.snapshot() (docs/snapshots.md).

    slot 0 │ slot 1 │ index            each copy goes over the older one, whose record is wiped first and written last
                                       (hooks/wire/snapshot_index.py)

The supervisor opens the three memory files, and grants how large the slots may be. Until then, and where a state has
grown beyond that, it is only found how large it is.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import types
import zlib
from _thread import get_ident
from collections.abc import Iterator
from time import monotonic_ns
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import SIZE_BYTES as BOARD_BYTES
from guardrun.hooks.wire.board import Field, board_name
from guardrun.hooks.wire.snapshot_index import (
    HOLDS,
    NAME,
    SHARDED,
    SLOTS,
    TOPIC,
    Record,
    pack_header,
    pack_record,
    record_offset,
    sum_of,
)
from guardrun.hooks.wire.snapshot_index import SIZE_BYTES as INDEX_BYTES

CHUNK_BYTES = 1 << 20
"""Copied and summed up at once: it lies in a processor's cache in between."""
SLACK_BYTES = 1 << 20
MAX_LOOKED_AT = 200_000
"""Values of a state that are looked at for tensors."""
PARTS = ("DTensor", "ShardedTensor", "FlatParameter")
"""Of which each rank holds a part."""
COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
"""torch's namespaces of operations in which ranks wait for each other."""
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
KEEPING_NODES = 2
"""Where replicas are alike, so many nodes keep a copy: one of them may be lost."""
MUCH, LITTLE = 0.05, 0.01
"""Shares of training that copies take: what is told, and what is proposed."""
COSTS_AFTER_NS = 60_000_000_000


class _RefusedError(Exception):
    """Why a state is not kept."""


class _CommunicatesError(Exception):
    """The script's function has begun to communicate with other ranks. Its operation."""


class Slot:
    """What torch.save() writes into: a slot, as far as it reaches; beyond that it only counts."""

    def __init__(self, fd: int, room_bytes: int, words: memoryview) -> None:
        self._fd, self._room, self._words = fd, room_bytes, words
        self.size_bytes = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        """Take bytes. Raises OSError."""
        view = memoryview(data).cast("B")
        length = len(view)
        if self.size_bytes + length <= self._room and self._words[Field.SNAPSHOT_GRANTED] >= 0:
            for start in range(0, length, CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                self._put(chunk, self.size_bytes + start)
                self.crc = zlib.crc32(chunk, self.crc)
        else:
            self._room = -1  # what follows would lie at a wrong place
        self.size_bytes += length
        return length

    def _put(self, chunk: memoryview, at: int) -> None:
        while chunk:
            written = os.pwrite(self._fd, chunk, at)
            chunk, at = chunk[written:], at + written

    def flush(self) -> None:
        """Nothing is held back."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self.size_bytes <= self._room


class MemorySnapshots:
    """One rank's. For the thread that trains."""

    def __init__(self, rank: Rank) -> None:
        settings: Any = rank.settings["snapshots"]
        self._rank = rank
        self._every: int = settings["steps"]
        self._folder: str = settings["dir"]
        self._calls = 0
        self._turn = -1
        """In which stretch of so many steps the last copy was due."""
        self._seen: tuple[int, object] = (-1, None)
        """At which step that was, and the path as it was given."""
        self._first_step = -1
        self._copies = False
        """It keeps the state of all replicas."""
        self._has_parts: bool | None = None
        """The state has tensors of which each rank holds a part; None: not known yet."""
        self._fds: list[tuple[int, tuple[int, int]]] = []
        """Index and slots, and what they are."""
        self._room = 0
        """Of each slot."""
        self._newest = 0
        """The slot that was written last; …"""
        self._generation = 0
        self._at = -1
        """… and of which step."""
        self._why_off = ""
        self._told: set[str] = set()
        self._took_ns = 0
        self._began_ns = 0
        self._taken = 0

    def keep_due(self, state: object, path: object) -> None:
        """The script has called snapshot(). Raises nothing of its own."""
        rank = self._rank
        if self._why_off or rank.pid != os.getpid():
            return
        if get_ident() != rank.owner_ident:
            self._note_once("thread", "snapshot() was called from a thread that does not train, which is ignored")
            return
        self._calls += 1
        steps: int = rank.words[Field.STEP]
        at = steps or self._calls
        if at // self._every == self._turn:
            if at == self._seen[0] and isinstance(path, str) and path != self._seen[1]:
                self._switch_off("snapshot() was called twice in a step with different paths: give it all in one state")
            return
        self._turn, self._seen = at // self._every, (at, path)
        if self._first_step < 0:
            self._first_step = steps
        began_ns = monotonic_ns()
        rank.words[Field.SAVE_SINCE_NS] = began_ns
        try:
            self._keep(state, path, at)
        except Exception as error:
            if raised_by_handler(error):
                raise
            reason = str(error) if isinstance(error, _RefusedError) else f"{type(error).__name__}: {error}"
            self._note_once("failed", f"no copy of the state could be made: {reason}")
        finally:
            ended_ns = monotonic_ns()
            rank.words[Field.SAVE_SINCE_NS] = 0
            rank.words[Field.PROGRESS_NS] = ended_ns
        self._note_cost(began_ns, ended_ns)

    def in_child(self) -> None:
        """This is a forked child: let go of the memory. Never raises."""
        self._why_off = "it is no rank"
        for fd, identity in self._fds:
            try:
                if _identity(fd) == identity:
                    os.close(fd)
            except OSError:
                pass
        self._fds = []

    # One copy --------------------------------------------------------------------------------------------------------

    def _keep(self, state: object, path: object, at: int) -> None:
        rank = self._rank
        template = self._template(path)
        is_sharded = template is not None and "{rank}" in template
        is_copier = is_sharded or self._has_parts or self._is_copier()
        value = None
        if is_copier or (template is None and self._has_parts is None):
            value = self._call(state) if isinstance(state, FUNCTIONS) else state
        if self._why_off:
            return
        tensors = list(_tensors_of(value))
        if value is not None:
            self._has_parts = any(_is_part(tensor) for tensor in tensors)
        if self._has_parts and template is not None and not is_sharded:
            self._switch_off("the state has sharded tensors: its path must have {rank} in it, one file for each rank")
            return
        if template is None:
            is_sharded = bool(self._has_parts)
            template = os.path.join(self._folder, f"snapshot_step_{{step}}{'_rank{rank}' if is_sharded else ''}.pt")
        if not (is_sharded or is_copier):
            value = None
        step = rank.step_now()
        filled = template.replace("{step}", str(step)).replace("{rank}", str(rank.global_rank))
        flags = (HOLDS if value is not None else 0) | (SHARDED if is_sharded else 0)
        if value is not None and not rank.words[Field.SNAPSHOT_WANTED]:
            rank.words[Field.SNAPSHOT_WANTED] = 1  # before it is seen that this rank has called: others look at both
        is_first = not self._fds
        self._open()
        is_counted = bool(rank.words[Field.STEP])
        record = Record(self._generation + 1, at, is_counted, step, 0, 0, flags, 0, filled)
        pack_record(record)  # raises before anything is wiped
        if not rank.words[Field.SNAPSHOT_NAMED]:
            rank.words[Field.SNAPSHOT_FIRST], rank.words[Field.SNAPSHOT_NAMED] = at, sum_of(record)
        if value is None:
            self._write_record(record, 1 - self._newest)
            if is_first:
                self._ask_at_once()  # its record is wanted, too, to see that ranks name the same path
        else:
            self._copy(value, tensors, record)

    def _call(self, function: Any) -> object:
        """What the script's function returns. It must wait for nobody: the other ranks may not call theirs."""
        if sys.modules.get("torch") is None:
            return function()
        try:
            with _make_guard():
                return function()
        except _CommunicatesError as error:
            self._switch_off(
                f"the function that snapshot() was given communicates ({error}), and other ranks do not call theirs: "
                "give it what was gathered on all ranks before"
            )
            return None

    def _copy(self, value: object, tensors: list[Any], record: Record) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            raise _RefusedError("torch is not imported")
        words, slot = self._rank.words, 1 - self._newest
        self._allocate()
        self._wipe(slot)
        versions = [_version(tensor) for tensor in tensors]
        file = Slot(self._fds[1 + slot][0], self._room, words)
        torch.save(value, file)
        if words[Field.SNAPSHOT_GRANTED] < 0:
            self._release()
        elif not file.is_whole:
            words[Field.SNAPSHOT_WANTED] = SLOTS * (file.size_bytes + file.size_bytes // 64 + SLACK_BYTES)
            self._ask_at_once()
        elif versions != [_version(tensor) for tensor in tensors]:
            raise _RefusedError("something has changed it meanwhile")
        else:
            self._write_record(record._replace(size_bytes=file.size_bytes, crc=file.crc), slot)

    def _ask_at_once(self) -> None:
        """Have the supervisor open the memory and grant it at once, rather than within a second."""
        self._rank.note(TOPIC, "")

    def _write_record(self, record: Record, slot: int) -> None:
        index = self._fds[0][0]
        os.pwrite(index, pack_record(record._replace(written_ns=monotonic_ns())), record_offset(slot))
        if record.at < self._at:
            self._wipe(1 - slot)  # the script has gone back: what came after is not to be gone on from
        self._newest, self._generation, self._at = slot, record.generation, record.at

    def _wipe(self, slot: int) -> None:
        os.pwrite(self._fds[0][0], bytes(16), record_offset(slot))

    # Memory ----------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the memory files, and show them. Raises OSError; _RefusedError where the script has closed them."""
        if self._fds:
            if not self._are_open():
                self._fds = []
                self._rank.words[Field.SNAPSHOT_INDEX] = 0
                self._why_off = "its memory files are closed"
                raise _RefusedError(f"{self._why_off}, by the script")
            return
        name = f"{NAME}-{self._rank.attempt}-{self._rank.global_rank}"
        made: list[int] = []
        try:
            for part in ("index", "0", "1"):
                made.append(os.memfd_create(f"{name}-{part}", os.MFD_CLOEXEC))
            os.posix_fallocate(made[0], 0, INDEX_BYTES)
            os.pwrite(made[0], pack_header((made[1], made[2])), 0)
        except BaseException:
            for fd in made:
                os.close(fd)
            raise
        self._fds = [(fd, _identity(fd)) for fd in made]
        self._rank.words[Field.SNAPSHOT_INDEX] = made[0] + 1

    def _are_open(self) -> bool:
        """Whether the descriptors are still those of the memory files: a script may close all, and use the numbers."""
        try:
            return bool(self._fds) and all(_identity(fd) == identity for fd, identity in self._fds)
        except OSError:
            return False

    def _allocate(self) -> None:
        """Take what is granted, if it is what is wanted. Raises OSError."""
        words = self._rank.words
        wanted, granted = words[Field.SNAPSHOT_WANTED], words[Field.SNAPSHOT_GRANTED]
        room = wanted // SLOTS
        if granted < 0:
            self._release()
            raise _RefusedError("memory is short")
        if granted < wanted or room <= self._room or room < SLACK_BYTES:
            return
        for fd, _ in self._fds[1:]:
            os.posix_fallocate(fd, 0, room)
        self._room = room
        words[Field.SNAPSHOT_HELD] = SLOTS * room

    def _release(self) -> None:
        """Memory is short: the supervisor has taken it back. What was written since goes as well."""
        for fd, _ in self._fds[1:]:
            os.ftruncate(fd, 0)
        for slot in range(SLOTS):
            self._wipe(slot)
        self._room = self._rank.words[Field.SNAPSHOT_HELD] = 0
        self._why_off = "memory is short"

    # Who, and where --------------------------------------------------------------------------------------------------

    def _template(self, path: object) -> str | None:
        """Where to, absolute; None: the script has not said. Raises TypeError."""
        if path is None:
            return None
        text = os.fsdecode(os.fspath(path))  # type: ignore[call-overload]  # raises TypeError
        if not text or "\0" in text:
            raise _RefusedError("its path is none")
        return os.path.abspath(text)

    def _is_copier(self) -> bool:
        """Whether it keeps what all replicas hold: on each of the first nodes the lowest rank that has a state does."""
        rank = self._rank
        below = range(rank.global_rank - rank.local_rank, rank.global_rank)
        is_first = rank.group_rank < KEEPING_NODES
        self._copies = self._copies or (is_first and all(self._holds_nothing(lower) for lower in below))
        return self._copies

    def _holds_nothing(self, lower: int) -> bool:
        try:
            with open(os.path.join(self._rank.sockets, board_name(self._rank.attempt, lower)), "rb") as file:
                words = memoryview(file.read(BOARD_BYTES)).cast("q")
        except (OSError, TypeError):
            return False
        if words[Field.SNAPSHOT_INDEX]:
            return not words[Field.SNAPSHOT_WANTED]
        return bool(words[Field.STEP] > self._first_step)  # it has had the occasion

    # What is said ----------------------------------------------------------------------------------------------------

    def _switch_off(self, why: str) -> None:
        """Keep nothing any more, nor what was kept."""
        self._why_off = why
        if self._are_open():
            self._release()
        self._why_off = why
        self._note_once("off", f"{why}; nothing is kept")

    def _note_once(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            self._rank.note(TOPIC, text)

    def _note_cost(self, began_ns: int, ended_ns: int) -> None:
        if not self._room:
            return
        self._began_ns = self._began_ns or began_ns
        self._took_ns += ended_ns - began_ns
        self._taken += 1
        passed_ns = ended_ns - self._began_ns
        if passed_ns < COSTS_AFTER_NS or self._taken < SLOTS or self._took_ns < MUCH * passed_ns:
            return
        share = self._took_ns / passed_ns
        better = int(self._every * share / LITTLE) + 1
        self._note_once(
            "cost",
            f"copies of the state take {100 * share:.0f} % of training; [checkpoint] snapshot_steps = {better} would "
            f"take about {100 * LITTLE:.0f} %",
        )


@functools.cache
def _make_guard() -> Any:
    """While it is entered, whatever communicates raises; torch has been imported."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Guard(TorchDispatchMode):  # type: ignore[misc]  # torch's has no types
        """Hears of all operations of this thread."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in COMMUNICATION:
                raise _CommunicatesError(func.overloadpacket.__name__.strip("_"))
            if any(one.__name__ == "DTensor" for one in types):
                return NotImplemented  # what it does for that is heard of
            return func(*args, **(kwargs or {}))

    return Guard()


def _tensors_of(value: object) -> Iterator[Any]:
    """Those in nested dicts, lists and tuples."""
    kind: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    waiting, left = [value], MAX_LOOKED_AT
    while waiting and left:
        one = waiting.pop()
        left -= 1
        if isinstance(one, kind):
            yield one
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)


def _is_part(tensor: Any) -> bool:
    if type(tensor).__name__ not in PARTS:
        return False
    placements = getattr(tensor, "placements", None)
    return placements is None or not all(type(one).__name__ == "Replicate" for one in placements)


def _version(tensor: Any) -> int:
    """How often it has been written to; -1 where nobody counts that (tensors of inference mode)."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return -1


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's has raised it, in the middle of something: it is the script's, then."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _identity(fd: int) -> tuple[int, int]:
    at = os.fstat(fd)
    return at.st_dev, at.st_ino
