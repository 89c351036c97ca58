"""Writing the calls page: what each torch.distributed call of the training thread was, where, and how far it got.

On the way of every collective: two or three microseconds, no locks, nothing that waits. A call whose arguments can't
be read is left out; an error of our own is said once, and the call goes its way.
"""

from __future__ import annotations

import os
import struct
import sys

from guardrun.hooks.calls.call_places import Places, Strings
from guardrun.hooks.calls.shared_file import make_shared_file
from guardrun.hooks.wire.board import OPS
from guardrun.hooks.wire.calls_page import (
    GROUP_BITS,
    GROUP_WORDS,
    GROUPS_AT,
    MAGIC,
    MAX_DIMS,
    MAX_GROUPS,
    MAX_RECORDS,
    RECORD_WORDS,
    RECORDS_AT,
    SIZE_BYTES,
    Flag,
    Group,
    Head,
    Record,
    calls_name,
    pack_ranks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class CallingRank(Protocol):
        """The rank whose calls are recorded: where its page lies, and who hears of errors."""

        sockets: str
        """The folder of the page."""
        attempt: int
        global_rank: int
        pid: int

        def fail(self, hook: str, error: BaseException) -> None:
            """A hook could not do its work: said once for each hook."""


MAX_WORKS = 512
"""Handles that are remembered until they are waited for."""
MAX_SHAPES = 1024
"""Shapes that are remembered in the form that the page has them in."""
MAX_BATCH = 8
"""Sends and receives of one batch that are recorded."""

_BODY = struct.Struct(f"<{RECORD_WORDS}q")
_FAR = 1 << 30
_MONITORED = OPS.index("monitored_barrier")
_PADDING: tuple[int, ...] = (0,) * MAX_DIMS
# Plain integers: an enum's member costs twice as much as an index.
_RECORDS, _FLAGS, _SEQ_BEFORE, _SEQ_AFTER = (
    int(Head.RECORDS),
    int(Record.FLAGS),
    int(Record.SEQ_BEFORE),
    int(Record.SEQ_AFTER),
)
_WAITING = int(Head.WAITING)
_DONE_NS, _TAIL = int(Record.DONE_NS), int(Record.TAIL)
_ASYNC, _P2P, _RETURNED = int(Flag.ASYNC), int(Flag.P2P), int(Flag.RETURNED)
_RAISED, _CUT = int(Flag.RAISED), int(Flag.CUT)
_SEQ_CALL, _SEQ_P2P = int(Group.SEQ_CALL), int(Group.SEQ_P2P)

_INPUTS = ("input_tensor_list", "input_list", "input_tensor", "input", "tensors", "tensor")
"""Parameters that hold what goes in; the first that a function has."""


class Signature:
    """Where a function of torch.distributed takes its arguments."""

    __slots__ = ("group_at", "input_at", "input_name", "is_batch", "is_p2p", "peer_at", "peer_name")

    def __init__(self, name: str, parameters: list[str]) -> None:
        self.is_batch = name == "batch_isend_irecv"
        self.is_p2p = self.is_batch or name in (
            "send",
            "recv",
            "isend",
            "irecv",
            "send_object_list",
            "recv_object_list",
        )
        self.input_name = next((each for each in _INPUTS if each in parameters), "")
        self.input_at = parameters.index(self.input_name) if self.input_name else _FAR
        self.group_at = parameters.index("group") if "group" in parameters else _FAR
        self.peer_name = next((each for each in ("dst", "src") if each in parameters), "") if self.is_p2p else ""
        self.peer_at = parameters.index(self.peer_name) if self.peer_name else _FAR


class Slot:
    """One process group on the page."""

    __slots__ = ("at", "index", "key", "p2p_numbers", "p2p_total", "ranks")

    def __init__(self, index: int, turn: int, ranks: list[int]) -> None:
        self.index = index
        self.key = index | turn << GROUP_BITS
        self.at = GROUPS_AT + index * GROUP_WORDS
        self.ranks = ranks
        self.p2p_total = 0
        self.p2p_numbers: dict[tuple[int, bool], int] = {}


class CallsPage:
    """The writer. The training thread calls all but note_seqs() and set_recorder(), which are the hooks' thread's."""

    def __init__(self, rank: CallingRank, module: Any) -> None:
        """Make the file and map it; module is torch.distributed.distributed_c10d. Raises OSError."""
        self._rank = rank
        self._c10d = module
        self._map = make_shared_file(os.path.join(rank.sockets, calls_name(rank.attempt, rank.global_rank)), SIZE_BYTES)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("q")
        self._strings = Strings(self._bytes, self._words)
        self._intern = self._strings.intern
        self._place_of = Places(self._strings).find
        self._dtypes: dict[Any, int] = {}
        self._shapes: dict[Any, tuple[int, ...]] = {}
        self._slots: dict[int, Slot] = {}
        """By the group's id(): forgotten whenever groups are made or destroyed."""
        self._by_name: dict[str, Slot] = {}
        self._works: dict[int, tuple[int, int]] = {}
        """Where the records of asynchronous calls are, and their numbers, by the handle's id()."""
        self._group: Any = None
        self._slot: Slot | None = None
        self._seq = -1
        """torch's count when the call under way began."""
        self._now_ns = 0
        self._place = 0
        """When it began, and where."""
        self._batch: list[int] | None = None
        self._words[Head.PID] = rank.pid
        self._words[Head.RECORDER_FD] = -1
        self._words[Head.MAGIC] = MAGIC

    def close(self) -> None:
        """Unmap the page: nothing may be called any more."""
        self._strings.close()
        self._words.release()
        self._bytes.release()
        self._map.close()

    def set_recorder(self, fd: int, inode: int, trouble: str = "") -> None:
        """Say where torch's worker server listens, or why it doesn't."""
        words = self._words
        words[Head.RECORDER_TROUBLE] = self._intern(trouble)
        words[Head.RECORDER_INODE] = inode
        words[Head.RECORDER_FD] = fd

    def forbid_entries(self, trouble: str) -> None:
        """Say why nobody may ask the recorder for its entries, from now on."""
        self._words[Head.ENTRIES_TROUBLE] = self._intern(trouble)

    def set_pipe(self, pipe: str, dump: str) -> None:
        """Say by which pipe torch is asked for a dump, and into which file it writes that."""
        number = self._intern(dump)
        if number:
            self._words[Head.DUMP] = number
            self._words[Head.PIPE] = self._intern(pipe)

    def enter(self, op: int, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], now_ns: int) -> int:
        """A call begins: answer where its (last) record is, for leave(); -1 where there is none. Never raises."""
        try:
            self._now_ns = now_ns
            self._place = self._place_of(sys._getframe(2))
            self._batch = None
            if signature.is_batch:
                return self._enter_batch(args[0] if args else kwargs["p2p_op_list"])
            group = kwargs.get("group") if kwargs else None
            given = len(args)
            if group is None and given > signature.group_at:
                group = args[signature.group_at]
            slot = self._begin(group)
            if slot is None:
                return -1
            at = signature.input_at
            tensor = args[at] if given > at else kwargs.get(signature.input_name)
            if not signature.is_p2p:
                return self._write(op, slot, tensor, -1, 0)
            at = signature.peer_at
            peer = args[at] if given > at else kwargs.get(signature.peer_name)
            if peer is None:
                member = kwargs.get(f"group_{signature.peer_name}")
                peer = slot.ranks[member] if member is not None else -1
            return self._write_p2p(op, slot, tensor, peer, signature.peer_name == "dst")
        except Exception as error:
            self._rank.fail("calls", error)
            return -1

    def leave(self, at: int, result: object, has_raised: bool, now_ns: int) -> None:
        """The call whose record is at `at` has returned (result), or raised. Never raises."""
        try:
            words = self._words
            slot, group, self._group = self._slot, self._group, None
            if slot is None:
                return
            seq = -1
            flags = words[at + _FLAGS]
            if self._seq >= 0:
                seq = group._get_sequence_number_for_group()
                if flags & _P2P or flags & 0xFF == _MONITORED:
                    # A monitored barrier is 2 collectives for everybody; for the first rank torch counts 2 a member.
                    slot.p2p_total += max(0, seq - self._seq - (0 if flags & _P2P else 2))
                    words[slot.at + _SEQ_P2P] = slot.p2p_total
                words[slot.at + _SEQ_CALL] = seq
                seq -= slot.p2p_total
            if self._batch is not None:
                self._leave_batch(self._batch, result, has_raised, now_ns)
                return
            flags |= _RETURNED
            if has_raised:
                flags |= _RAISED
            elif result is not None and isinstance(result, self._c10d.Work):
                flags |= _ASYNC
                self._remember(result, at)
            words[at + _SEQ_AFTER] = seq
            words[at + _FLAGS] = flags
            if not flags & _ASYNC:
                words[at + _DONE_NS] = now_ns
        except Exception as error:
            self._rank.fail("calls", error)

    def wait_begins(self, work: object) -> None:
        """An asynchronous call's handle is about to be waited for. Never raises."""
        self._words[_WAITING] = self._works.get(id(work), (0, 0))[1]

    def wait_ends(self, work: object, has_raised: bool, now_ns: int) -> None:
        """The wait has returned, or raised. Never raises."""
        words = self._words
        words[_WAITING] = 0
        at, number = self._works.pop(id(work), (0, 0))
        if number and words[at] == number:
            if has_raised:
                words[at + _FLAGS] |= _RAISED
            words[at + _DONE_NS] = now_ns

    def note_groups(self, since_ns: int = 0, timeout_ns: int = 0) -> None:
        """Groups were made (since since_ns, with that timeout) or destroyed: bring the table up to date.

        Never raises.
        """
        try:
            world = self._c10d._world
            self._slots.clear()
            living = set()
            for group in list(world.pg_map):
                name = str(world.pg_names.get(group) or group.group_name)
                living.add(name)
                if name not in self._by_name:
                    self._add_group(name, group, world, since_ns, timeout_ns)
                if name in self._by_name:
                    self._slots[id(group)] = self._by_name[name]
            for name in [name for name in self._by_name if name not in living]:
                self._words[self._by_name.pop(name).at] &= ~1
        except Exception as error:
            self._rank.fail("calls", error)

    def own_timeout_ns(self, name: str) -> int:
        """The timeout that the script itself gave the group of that name; 0 none, -1 where there is no such group."""
        slot = self._by_name.get(name)
        return -1 if slot is None else int(self._words[slot.at + Group.TIMEOUT_NS])

    def note_seqs(self, seqs: dict[str, int]) -> None:
        """What the hooks' thread has read: torch's counts by the groups' names."""
        for name, seq in seqs.items():
            slot = self._by_name.get(name)
            if slot is not None:
                self._words[slot.at + Group.SEQ_HEART] = seq

    def _add_group(self, name: str, group: Any, world: Any, made_ns: int, timeout_ns: int) -> None:
        index = next((i for i in range(MAX_GROUPS) if not self._words[GROUPS_AT + i * GROUP_WORDS] & 1), None)
        if index is None:
            return
        words, at = self._words, GROUPS_AT + index * GROUP_WORDS
        turn = (words[at] >> 1) + 1
        ranks = [int(each) for each in world.pg_group_ranks.get(group, ())]
        words[at + Group.NAME] = self._intern(name)
        words[at + Group.DESC] = self._intern(str(getattr(group, "group_desc", "")))
        words[at + Group.RANKS] = self._intern(pack_ranks(ranks))
        words[at + Group.BACKEND] = self._intern(str(world.pg_backend_config.get(group) or world.pg_map[group][0]))
        words[at + Group.SEQ_CALL] = words[at + Group.SEQ_HEART] = words[at + Group.SEQ_P2P] = 0
        words[at + Group.MADE_NS], words[at + Group.TIMEOUT_NS] = made_ns, timeout_ns
        words[at] = turn << 1 | 1
        words[Head.GROUPS] = max(words[Head.GROUPS], index + 1)
        self._by_name[name] = Slot(index, turn, ranks)

    def _begin(self, group: Any) -> Slot | None:
        """Find the group's slot and read its count; None where this rank is no member."""
        if group is None:
            group = self._c10d._world.default_pg
        slot = self._slots.get(id(group))
        self._slot = slot
        if slot is None:
            return None
        self._group = group
        try:
            self._seq = group._get_sequence_number_for_group()
        except Exception:  # Not every backend counts.
            self._seq = -1
        return slot

    def _enter_batch(self, ops: list[Any]) -> int:
        if not ops:
            return -1
        slot = self._begin(ops[0].group)
        if slot is None:
            return -1
        batch = []
        for each in ops[:MAX_BATCH]:
            name = each.op.__name__
            batch.append(self._write_p2p(OPS.index(name), slot, each.tensor, each.peer, name == "isend"))
        self._batch = batch
        return batch[-1]

    def _leave_batch(self, batch: list[int], result: object, has_raised: bool, now_ns: int) -> None:
        works = result if isinstance(result, list) and len(result) >= len(batch) else []
        words = self._words
        for index, at in enumerate(batch):
            words[at + _FLAGS] |= _RETURNED | (_RAISED if has_raised else _ASYNC)
            if has_raised:
                words[at + _DONE_NS] = now_ns
            elif works:
                self._remember(works[index], at)

    def _remember(self, work: object, at: int) -> None:
        if len(self._works) >= MAX_WORKS:
            self._works.clear()
        self._works[id(work)] = (at, self._words[at])

    def _write_p2p(self, op: int, slot: Slot, given: Any, peer: int, is_send: bool) -> int:
        key = (peer, is_send)
        number = slot.p2p_numbers[key] = slot.p2p_numbers.get(key, 0) + 1
        return self._write(op | _P2P, slot, given, peer, number)

    def _write(self, flags: int, slot: Slot, given: Any, peer: int, number: int) -> int:
        """Add a record to the ring; answer where."""
        dims, dtype = _PADDING, 0
        if given is not None:
            shape = getattr(given, "shape", None)
            if shape is not None:
                dims = self._shapes.get(shape) or self._learn_shape(shape)
                if dims is _PADDING:
                    flags |= _CUT
                dtype = self._dtypes.get(given.dtype) or self._learn_dtype(given.dtype)
            elif isinstance(given, list | tuple):
                dims, dtype, is_cut = self._list_dims(given)
                flags |= _CUT if is_cut else 0
        words = self._words
        seq = self._seq - slot.p2p_total if self._seq >= 0 else -1
        count = words[_RECORDS]
        at: int = RECORDS_AT + count % MAX_RECORDS * RECORD_WORDS
        words[at] = words[at + _TAIL] = 0
        _BODY.pack_into(
            self._bytes,
            at * 8,
            0,
            flags,
            slot.key,
            seq,
            -1,
            self._now_ns,
            0,
            self._place,
            peer,
            dtype,
            number,
            *dims,
            count + 1,
        )
        words[at] = words[_RECORDS] = count + 1
        return at

    def _learn_shape(self, shape: Any) -> tuple[int, ...]:
        """A tensor's shape as Record.DIMS has it; _PADDING where it has no room."""
        dims = _PADDING if len(shape) >= MAX_DIMS else (len(shape) + 1, *shape, *_PADDING[len(shape) + 1 :])
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = dims
        return dims

    def _list_dims(self, given: list[Any] | tuple[Any, ...]) -> tuple[tuple[int, ...], int, bool]:
        """Shapes of a list's tensors, as many as have room, and the first one's dtype; whether some had none."""
        dims: list[int] = []
        dtype = 0
        is_cut = False
        for tensor in given:
            shape = getattr(tensor, "shape", None)
            if shape is None:
                return _PADDING, 0, False
            if len(dims) + 1 + len(shape) > MAX_DIMS:
                is_cut = True
                break
            dims += [len(shape) + 1, *shape]
            dtype = dtype or self._dtypes.get(tensor.dtype) or self._learn_dtype(tensor.dtype)
        return (*dims, *_PADDING[len(dims) :]), dtype, is_cut

    def _learn_dtype(self, dtype: Any) -> int:
        index = self._dtypes[dtype] = self._intern(str(dtype).removeprefix("torch."))
        return index
