"""A rank's process groups, now and when it fell: what the flight recorder and the calls page say, put together.

The recorder knows every collective, DDP's and FSDP's own too, and which are done; neither whose lines called them nor,
over gloo, who the members are, or of sends and receives. The page knows these, of calls made from Python. They meet at
the group's name and the collective's number. Of a call that both know, operation and shapes are the page's: gloo
carries out a reduce_scatter as all_reduces, and a rank of which only the page is known must look like the others.

What is known of a call to neither (whether an asynchronous one is done, without a recorder) is left out.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from guardrun.hooks.wire.board import MAGIC, Field, Milestone
from guardrun.hooks.wire.calls_page import calls_name, recorder_name
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.collectives.calls_page import CallsPage, PageCall, PageGroup, read_calls
from guardrun.supervisor.collect.collectives.flight_recorder import Entry, Trace, TraceError
from guardrun.supervisor.collect.collectives.recorder_reader import RankBoard, Reading, RecorderReader
from guardrun.supervisor.engine.model.looks import Call, GroupLook
from guardrun.supervisor.engine.observation.collective_calls import direction, runs_on_device

MAX_GROUPS = 32
MAX_PENDING = 8
MAX_COLLECTIVES = 1024
"""Of one call: objects take two; gloo's scattered reductions one a member."""
LAST_CALLS = 32
"""Some steps' worth: who left the order of calls is told by how it was before."""
LAST_CALLS_OF_MANY = 3
MANY_RANKS = 32
"""From this world size on, fewer calls of each rank are kept: there, most are right."""
NO_HOOKS = "no hooks in this rank"
_MADE_MARGIN_NS = 1_000_000

RECORDER, HOOKS, BOTH = "flight recorder", "hooks", "both"
ISSUED, STARTED, COMPLETED = "issued", "started", "completed"

AtNs = Callable[[int], float]


class Asked(NamedTuple):
    """Which rank is asked."""

    pid: int
    state: str
    """The process's."""
    words: list[int]
    """Its board, …"""
    board: RankBoard
    """… and that itself."""
    sockets_dir: str
    attempt: int
    global_rank: int


class GroupsRead(NamedTuple):
    """What a rank tells of its calls."""

    groups: list[GroupLook] = []  # noqa: RUF012
    trouble: str = ""
    """Why they say less than they might."""
    counts: dict[str, list[int]] = {}  # noqa: RUF012
    """As observation.device_counts has them."""
    is_unread: bool = False
    """As RankLook has it."""


def read_groups(asked: Asked, reader: RecorderReader, clock: EngineClock, *, limit_s: float, last: int) -> GroupsRead:
    """A rank's groups. reader: what earlier looks know of its recorder. Takes limit_s at most.

    last: how many calls of each group, besides those that are pending.
    """
    if asked.words[Field.MAGIC] != MAGIC or asked.words[Field.PID] != asked.pid:
        return GroupsRead(trouble=NO_HOOKS)
    deadline = time.monotonic() + limit_s
    path = os.path.join(asked.sockets_dir, calls_name(asked.attempt, asked.global_rank))
    reading, trouble = Reading(), ""
    try:
        page = read_calls(path)
        if asked.state in "Tt":
            trouble = "a stopped process can't tell what its flight recorder has"
        elif asked.words[Field.MILESTONES] & Milestone.ENDED:
            trouble = "its script has ended: its flight recorder is not asked any more"
        else:
            reader.wait_for_server(asked.board, limit_s)
            page = read_calls(path)
            socket = os.path.join(asked.sockets_dir, recorder_name(asked.attempt, asked.global_rank))
            reading = reader.read(asked.pid, asked.board, page, socket, deadline - time.monotonic())
            trouble = reading.trouble
    except FileNotFoundError:
        return GroupsRead()  # torch.distributed has not been imported.
    except TraceError as error:
        trouble = str(error)
    except (OSError, ValueError) as error:
        return GroupsRead(trouble=f"what it has called can't be read: {error}")
    try:
        page = read_calls(path)  # Anew: no older than what the recorder told.
    except (OSError, ValueError):
        pass
    wall_ns = time.time_ns() - time.monotonic_ns()
    groups = join(page, reading.trace, at_ns=clock.at_ns, wall_ns=wall_ns, last=last)
    on_device = any(runs_on_device(backend) for group in page.groups for backend in _backends(group))
    return GroupsRead(groups, trouble, reading.counts, is_unread=on_device and not reading.is_read)


def join(
    page: CallsPage | None, trace: Trace | None, *, at_ns: AtNs, wall_ns: int = 0, last: int = LAST_CALLS
) -> list[GroupLook]:
    """Put together what there is of both. wall_ns: what CLOCK_MONOTONIC is behind the wall clock."""
    entries: dict[str, list[Entry]] = defaultdict(list)
    calls: dict[str, list[PageCall]] = defaultdict(list)
    known = {group.name: group for group in page.groups} if page is not None else {}
    for entry in trace.entries if trace is not None else ():
        group = known.get(entry.group)
        # Names are used again; what the recorder has of the group that was destroyed must not count for this one.
        if group is None or not group.is_anew or entry.created_ns - wall_ns >= group.made_ns - _MADE_MARGIN_NS:
            entries[entry.group].append(entry)
    for call in page.calls if page is not None else ():
        calls[call.group.name].append(call)
    # Where the page knows the groups, what else the recorder has is of groups that were destroyed.
    names = list(known) if known else list(entries)
    members = trace.members if trace is not None else {}
    looks = [
        joiner.look(name, last)
        for name in names
        for joiner in _joiners(
            _Account(known.get(name), calls[name], entries[name], members.get(name, [])), trace, at_ns, wall_ns
        )
    ]
    looks.sort(key=lambda look: (not _is_pending(look), -max((call.at_s for call in look.calls), default=0.0)))
    return looks[:MAX_GROUPS]


def _is_pending(look: GroupLook) -> bool:
    return any(call.state != COMPLETED for call in look.calls)


class _Account(NamedTuple):
    """What there is of one group."""

    group: PageGroup | None
    calls: list[PageCall]
    entries: list[Entry]
    members: list[int]
    """As the recorder has them."""


def _joiners(account: _Account, trace: Trace | None, at_ns: AtNs, wall_ns: int) -> list[_Joiner]:
    """One for each backend of a group: each counts its own calls.

    The page counts those of torch's default backend, and has calls to all. One that another backend's recorder has as
    under way is that one's: NCCL's return at once. A backend of which a recorder has nothing has issued nothing, where
    that recorder has lost nothing: others may wait there for its first call.
    """
    group, calls, entries, _ = account
    known = {*_backends(group), *(entry.backend for entry in entries)}
    if len(known) < 2:
        return [_Joiner(account, at_ns, wall_ns)]
    counted = _counted(known)
    if not entries and (trace is None or trace.trouble):
        # Whose the calls are, nobody has told; the count is the default backend's, and others compare theirs with it.
        is_counted = group is not None and max(group.issued, group.issued_by_heart) >= 0
        count = [_Joiner(account._replace(calls=[], entries=[]), at_ns, wall_ns, part=counted)] if is_counted else []
        return [_Joiner(account, at_ns, wall_ns), *count]
    lost = trace.lost if trace is not None else []
    told = [backend for backend in sorted(known) if backend != counted and backend not in lost]
    by_backend: dict[str, list[Entry]] = {name: [] for name in [counted, *told]}
    for entry in entries:
        by_backend.setdefault(entry.backend, []).append(entry)
    is_elsewhere = any(not entry.is_done for name, of_it in by_backend.items() if name != counted for entry in of_it)
    own = [call for call in calls if call.has_returned or not is_elsewhere]
    uncounted = group._replace(issued=0, issued_by_heart=0) if group is not None else None
    return [
        _Joiner(
            account._replace(group=group, calls=own, entries=of_it)
            if name == counted
            else account._replace(group=uncounted, calls=[], entries=of_it),
            at_ns,
            wall_ns,
            part=name,
        )
        for name, of_it in by_backend.items()
    ]


def _backends(group: PageGroup | None) -> set[str]:
    """What a group was made with: `cpu:gloo,cuda:nccl` is two."""
    return {part.rpartition(":")[2] for part in group.backend.split(",")} - {""} if group is not None else set()


def _counted(backends: set[str]) -> str:
    """Whose number torch gives for a group of several: NCCL's where it is one of them, else gloo's last.

    torch/distributed/distributed_c10d.py, _new_process_group_helper: the default backend.
    """
    return min(backends, key=lambda backend: (backend != "nccl", backend == "gloo", backend))


class _Joiner:
    """One group, or one backend's part of it."""

    def __init__(self, account: _Account, at_ns: AtNs, wall_ns: int, *, part: str = "") -> None:
        """part: the backend, where the group has others besides."""
        self.group, self.calls, self.entries, members = account
        self.members = (self.group.ranks if self.group is not None else []) or members
        self.at_ns = at_ns
        self.wall_ns = wall_ns
        self.part = part
        self.backend = part or _backend(self.group, self.entries)

    def look(self, name: str, last: int) -> GroupLook:
        group = self.group
        collectives = self._collectives()
        found = sorted([*collectives.values(), *self._p2p()], key=lambda call: (call.at_s, call.seq))
        pending = [call for call in found if call.state != COMPLETED]
        issued = max([self._issued(), *collectives])
        done = [call for call in found if call.state == COMPLETED]
        wanted = [*pending[:MAX_PENDING], *_last_of_ways(done[:-last]), *done[-last:]]
        desc = group.desc if group is not None else self.entries[-1].desc if self.entries else ""
        return GroupLook(
            name=name,
            desc="" if desc == "undefined" else desc,
            backend=self.backend,
            part=self.part,
            ranks=self.members,
            issued=issued,
            completed=self._completed(collectives, issued),
            calls=sorted(wanted, key=lambda call: (call.at_s, call.seq)),
            timeout_s=group.timeout_s if group is not None else 0.0,
            source=BOTH if group is not None and self.entries else HOOKS if group is not None else RECORDER,
        )

    def _issued(self) -> int:
        if self.group is None:
            return 0
        if runs_on_device(self.backend):  # which counts sends and receives apart
            return max(0, self.group.issued, self.group.issued_by_heart)
        if self.entries or any(call.p2p_number and not call.has_returned for call in self.calls):
            return max(0, self.group.issued)
        return max(0, self.group.issued, self.group.issued_by_heart)

    def _completed(self, collectives: dict[int, Call], issued: int) -> int:
        pending = [seq for seq, call in collectives.items() if call.state != COMPLETED]
        if pending:
            return min(pending) - 1
        # Without a recorder, what DDP and FSDP issue is seen to be issued, and no more.
        knows_all = bool(self.entries) or (self.backend == "gloo" and issued in (0, *collectives))
        return issued if knows_all else -1

    def _collectives(self) -> dict[int, Call]:
        """Number → call."""
        found: dict[int, Call] = {}
        for entry in self.entries:
            if not entry.is_p2p and not (entry.seq in found and entry.op.lower().endswith("coalesced")):
                found[entry.seq] = self._of_entry(entry, found.get(entry.seq))
        for call in self.calls:
            if call.p2p_number:
                continue
            for seq in self._numbers(call, max(found, default=0)):
                merged = self._of_call(call, seq, found.get(seq))
                if merged is not None:
                    found[seq] = merged
        return found

    def _numbers(self, call: PageCall, newest: int) -> Iterable[int]:
        """Which collectives a call was: none within a coalescing manager, several for objects; the last may be open."""
        if call.before < 0 or (call.after < 0 and call.has_returned):
            return ()
        last = call.after if call.after >= 0 else max(call.before + 1, newest)
        return range(call.before + 1, min(last, call.before + MAX_COLLECTIVES) + 1)

    def _of_entry(self, entry: Entry, before: Call | None) -> Call:
        """Several entries of one number were coalesced: pending if one of them is."""
        is_done = entry.is_done and (before is None or before.state == COMPLETED)
        return Call(
            seq=entry.p2p_seq if entry.is_p2p else entry.seq,
            op=before.op if before is not None else entry.op,
            sizes=[*before.sizes, *entry.sizes] if before is not None else entry.sizes,
            dtype=entry.dtype,
            state=COMPLETED if is_done else STARTED if entry.is_started else ISSUED,
            at_s=self.at_ns(entry.created_ns - self.wall_ns) if entry.created_ns else 0.0,
            peer=self._global(entry.peer),
        )

    def _of_call(self, call: PageCall, seq: int, entry: Call | None) -> Call | None:
        """The same call with what the page knows of it; None where nothing tells whether it is done."""
        state = self._state(call, entry)
        if not state:
            return None
        sizes = call.sizes or (entry.sizes if entry is not None else [])
        return Call(
            seq=seq,
            op=call.op,
            sizes=sizes,
            dtype=call.dtype or (entry.dtype if entry is not None else ""),
            state=state,
            at_s=self.at_ns(call.at_ns),
            frame=call.frame,
            peer=call.peer,
        )

    def _state(self, call: PageCall, entry: Call | None) -> str:
        is_over = call.done_ns > 0 and (call.has_returned or call.is_async)
        if entry is not None:
            # Over gloo a call that has returned is done. NCCL's are only under way: the recorder knows.
            return COMPLETED if is_over and self.backend == "gloo" else entry.state
        if is_over or call.has_raised:
            return COMPLETED
        if not call.has_returned or call.is_waited_for:
            return ISSUED
        return ""

    def _p2p(self) -> list[Call]:
        """Sends and receives: the page's, which counts them by peer; the recorder's where there is no page."""
        if self.group is None:
            return self._counted_by_peer([self._of_entry(entry, None) for entry in self.entries if entry.is_p2p])
        calls = [call for call in self.calls if call.p2p_number]
        entries = self._entries_of(calls) if self.backend != "gloo" else {}
        found = [self._of_call(call, call.p2p_number, entries.get(call.number)) for call in calls]
        return [call for call in found if call is not None]

    def _counted_by_peer(self, told: list[Call]) -> list[Call]:
        """The recorder's sends and receives, numbered as the page does; without a peer where the first ones are lost.

        Its own numbers are those of all of a rank's, which differ from the other side's.
        """
        if told and min(call.seq for call in told) > 1:
            return [msgspec.structs.replace(call, peer=-1) for call in told]
        count: Counter[tuple[str, int]] = Counter()
        numbered = []
        for call in told:
            way = direction(call), call.peer
            count[way] += 1
            numbered.append(msgspec.structs.replace(call, seq=count[way]))
        return numbered

    def _entries_of(self, calls: list[PageCall]) -> dict[int, Call]:
        """The recorder's entries of sends and receives, by the page's number of the call.

        The recorder counts those of a group (of a batch, once), the page those with one peer: both have them in the
        order in which they were issued, and the last of one are the last of the other.
        """
        told: dict[tuple[str, int], list[Call]] = defaultdict(list)
        for entry in self.entries:
            if entry.is_p2p:
                call = self._of_entry(entry, None)
                told[direction(call), call.peer].append(call)
        return {
            call.number: told[way].pop()
            for call in reversed(calls)
            if told.get(way := (direction(Call(0, call.op)), call.peer))
        }

    def _global(self, member: int) -> int:
        return self.members[member] if 0 <= member < len(self.members) else member


def _last_of_ways(calls: list[Call]) -> list[Call]:
    """The last send to and the last receive from each peer: who waits for its other side is told by their numbers."""
    ways = {(direction(call), call.peer): call for call in calls if call.peer >= 0}
    return list(ways.values())[-MAX_PENDING:]


def _backend(group: PageGroup | None, entries: list[Entry]) -> str:
    """nccl, gloo, …: what its last entry ran on, else what it was made with, if that is only one."""
    if entries:
        return entries[-1].backend
    parts = _backends(group)
    return parts.pop() if len(parts) == 1 else ""


# Last calls ---------------------------------------------------------------------------------------------------------
# What the ranks of a fallen attempt had called last: their calls pages outlive them.


def read_last_calls(
    sockets_dir: str | os.PathLike[str], attempt: int, global_rank: int, clock: EngineClock
) -> list[GroupLook]:
    """A rank's groups as its page has them; empty where it has none, or none that can be read.

    A call that raised counts as under way: whoever lost a peer in it had not got what it was for.
    """
    try:
        page = read_calls(os.path.join(sockets_dir, calls_name(attempt, global_rank)))
    except (OSError, ValueError):
        return []
    page = page._replace(calls=[_as_begun(call) if call.has_raised else call for call in page.calls])
    return join(page, None, at_ns=clock.at_ns, last=LAST_CALLS)


def _as_begun(call: PageCall) -> PageCall:
    return call._replace(has_raised=False, has_returned=False, done_ns=0, after=-1)
