"""Flight-recorder dumps of jobs that never ran, as torch 2.6 to 2.13 would write them; and what the hooks would know.

The jobs are told in the notation of recorder_script.py. After torch's sources (c10d: FlightRecorder.hpp,
FlightRecorderDetail.hpp, ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp) and dumps that were recorded
(tests/data/recorder):

- Numbers: a group counts collectives and, apart, sends and receives; a batch has one number, and each entry has both.
- The parts of a batch have no events: they stay scheduled, and are never retired. A closing entry without sizes tells
  its state; it is no operation, `is_p2p` is false, and after sends and receives its collective number is that of the
  collective before them. Until 2.7 the parts of coalesced collectives have no entries at all.
- `started` is told with timing only. The watchdog retires what is done, and what has timed out.
- gloo's entries stay scheduled; `retired` says that they are done. Sends and receives have none, groups no names.
- The ring keeps the last entries. Times are nanoseconds of the wall clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guardrun.supervisor.collect.collectives.calls_page import CallsPage, PageCall, PageGroup
from guardrun.supervisor.engine.model.looks import Frame
from tests.support.recorder_operations import Shapes, operation_of, parts_of
from tests.support.recorder_script import SECOND, WORLD, Item, parse_ranks, parse_script

WALL_NS = 1_700_000_000_000_000_000
"""What the monotonic clock is behind the wall clock."""
SCRIPT = "/home/me/train.py"
_LINE_NS, _ITEM_NS, _RANK_NS = 10**9, 10**6, 10**3
_DONE_AFTER_NS = 500_000


class Release(NamedTuple):
    """What a dump has in a release of torch."""

    version: str
    """Of the dump."""
    library: str = "comm_lib_version"
    """The key of NCCL's version; empty: none."""
    has_parts: bool = True
    """Each part of coalesced collectives has an entry."""
    has_threads: bool = True


RELEASES = {
    "2.6": Release("2.4", "", has_parts=False, has_threads=False),
    "2.7": Release("2.5", "", has_parts=False, has_threads=False),
    "2.8": Release("2.7", "nccl_version", has_threads=False),
    "2.13": Release("2.10"),
}
"""Of dumps that were seen (2.10: torch 2.11 and 2.13) or whose header was read (2.4 to 2.7, which say what their
entries have); the releases in between may have moved a key that nobody here reads."""

_DTYPES = {"Float": "float32", "BFloat16": "bfloat16", "Double": "float64", "Long": "int64"}


@dataclass(frozen=True)
class Group:
    """One process group."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str = "cuda:nccl"


@dataclass
class _Counts:
    """What a rank's group has counted: of one backend, where it has two."""

    collectives: int = 0
    p2p: int = 0
    ops: int = 0
    done: int = 0


@dataclass
class _Record:
    """What a rank's recorders and its hooks have written by a look."""

    rank: int
    entries: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"nccl": [], "gloo": []})
    counts: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    calls: list[PageCall] = field(default_factory=list)
    ways: Counter[tuple[str, int, bool]] = field(default_factory=Counter)
    last_issued: dict[str, int] = field(default_factory=dict)
    """By the group's name: what the last call of the script's own has left."""
    destroyed: dict[str, Group] = field(default_factory=dict)
    """By name."""
    made_ns: dict[str, int] = field(default_factory=dict)
    """When a group got a name that another had had before."""

    def count(self, group: Group, backend: str) -> _Counts:
        return self.counts.setdefault((group.name, backend), _Counts())


class _Issue(NamedTuple):
    """One item that a rank issues."""

    record: _Record
    group: Group
    item: Item
    state: str
    """At the look."""
    line: int
    """Of the script."""
    at_ns: int


class Job:
    """A job's ranks, groups and calls."""

    def __init__(
        self,
        script: str,
        *,
        ranks: int = 4,
        groups: Mapping[str, str] | None = None,
        backends: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        torch: str = "2.13",
        timing: bool = False,
        ring: int = 2000,
    ) -> None:
        """groups: their ranks, besides the world. backends: of those that have others than NCCL alone.

        names: torch's, where that is not the group's number: groups without a common member may share one, and so may
        one that is made after another was destroyed (an item `destroy`). torch: one of RELEASES. Raises ValueError for
        a script that is not in the notation.
        """
        told = {WORLD: f"0-{ranks - 1}", **(groups or {})}
        kinds, own_names = backends or {}, names or {}
        self.ranks = ranks
        self.groups = {
            name: Group(
                own_names.get(name, str(index)),
                "default_pg" if name == WORLD else name,
                tuple(parse_ranks(members)),
                kinds.get(name, "cuda:nccl"),
            )
            for index, (name, members) in enumerate(told.items())
        }
        self.release = RELEASES[torch]
        self.timing = timing
        self.ring = ring
        self._lines = parse_script(script)
        self._records: dict[tuple[int, int], _Record] = {}

    def dump(self, rank: int, look: int = SECOND, backend: str = "nccl") -> bytes:
        """What a rank's worker server answers: dump_nccl_trace_json, or fr_trace_json for gloo."""
        return json.dumps(self.raw_dump(rank, look, backend)).encode()

    def raw_dump(self, rank: int, look: int = SECOND, backend: str = "nccl") -> dict[str, Any]:
        """The same, before it is written."""
        record = self._record(rank, look)
        mine = [group for group in self.groups.values() if rank in group.ranks]
        mine = [group for group in mine if record.destroyed.get(group.name) is not group]
        counts = {group: record.counts.get((group.name, backend)) for group in mine}
        used = [group for group, count in counts.items() if count is not None and backend == "nccl"]
        dump: dict[str, Any] = {
            "version": self.release.version,
            "nccl_comm_state": {},
            "pg_config": {
                each.name: {"name": each.name, "desc": each.desc, "ranks": str(list(each.ranks))} for each in used
            },
            "pg_status": {
                group.name: {
                    "last_enqueued_collective": str(count.collectives),
                    "last_started_collective": str(count.done if self.timing else -1),
                    "last_completed_collective": str(count.done),
                }
                for group, count in counts.items()
                if count is not None
            },
        }
        if backend == "gloo":
            dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": str(list(range(self.ranks)))}}
        if self.release.library:
            dump[self.release.library] = "2.28.9" if backend == "nccl" else ""
        if entries := record.entries[backend][-self.ring :]:
            dump["entries"] = entries
        return dump

    def uses_gloo(self, rank: int) -> bool:
        return bool(self._record(rank, SECOND).entries["gloo"])

    def page(self, rank: int, look: int = SECOND) -> CallsPage:
        """What a rank's hooks have left of its calls from Python."""
        record = self._record(rank, look)
        known = {}
        for group in self.groups.values():
            if rank in group.ranks and record.destroyed.get(group.name) is not group:
                issued = record.counts.get((group.name, _counted(group)), _Counts()).collectives
                known[group.name] = PageGroup(
                    group.name,
                    group.desc,
                    list(group.ranks),
                    group.backend,
                    issued=record.last_issued.get(group.name, 0),
                    issued_by_heart=issued,
                    made_ns=record.made_ns.get(group.name, 1),
                    is_anew=group.name in record.destroyed,
                )
        calls = [call._replace(group=known[call.group.name]) for call in record.calls if call.group.name in known]
        return CallsPage(1000 + rank, list(known.values()), calls[-160:], 5, 7, "")

    # Issuing -----------------------------------------------------------------------------------------------

    def _record(self, rank: int, look: int) -> _Record:
        if (rank, look) not in self._records:
            self._records[rank, look] = self._replay(rank, look)
        return self._records[rank, look]

    def _replay(self, rank: int, look: int) -> _Record:
        record = _Record(rank)
        for line in self._lines:
            group = self.groups[line.group]
            if rank in (line.ranks if line.ranks is not None else group.ranks) and line.look <= look:
                for index, item in enumerate(line.items):
                    at_ns = line.number * _LINE_NS + index * _ITEM_NS + rank * _RANK_NS
                    self._issue(_Issue(record, group, item, item.state_at(look), line.number, at_ns))
        return record

    def _issue(self, issue: _Issue) -> None:
        record, group, item, state, _, at_ns = issue
        if item.name == "destroy":
            record.destroyed[group.name], record.made_ns[group.name] = group, at_ns
            record.counts = {key: count for key, count in record.counts.items() if key[0] != group.name}
            record.calls = [call for call in record.calls if call.group.name != group.name]
            return
        counts, counted = record.count(group, item.backend), record.count(group, _counted(group))
        before = counted.collectives
        if state != "+":
            if item.is_p2p:
                counts.p2p += 1
            else:
                counts.collectives += 1
                counts.done += not state
            self._write(issue, counts)
        if item.is_torchs:
            return
        # What a coalescing manager keeps back, until it issues all of it, is none when it returns.
        is_kept_back = bool(item.parts) or item.name == "all_reduce_coalesced"
        after = -1 if item.is_open or state == "+" else before if is_kept_back else counted.collectives
        for part in item.parts or (item,):
            record.calls.append(_call(issue, part, before, after))
        record.last_issued[group.name] = counted.collectives

    def _write(self, issue: _Issue, counts: _Counts) -> None:
        """The entries of one call."""
        item, release = issue.item, self.release
        parts, closing = parts_of(item)
        is_batch = closing != "" and item.name != "all_reduce_coalesced"
        for part in parts:
            counts.ops += 1
            if not is_batch or release.has_parts or item.is_p2p:
                shown = issue._replace(item=part, state="part" if is_batch else issue.state)
                self._entry(shown, operation_of(part, issue.group.ranks, issue.record.rank), counts)
        if closing:
            name = closing if release.has_parts else "coalesced"
            self._entry(issue._replace(item=Item(name)), (name, (), ()), counts)

    def _entry(self, issue: _Issue, operation: tuple[str, Shapes, Shapes], counts: _Counts) -> None:
        """One entry; its state is `part` where it is one of a batch."""
        record, group, item, state, _, at_ns = issue
        name, into, out = operation
        entries = record.entries[item.backend]
        created_ns = WALL_NS + at_ns + len(entries)
        is_gloo, is_done = item.backend == "gloo", state == ""
        has_started = self.timing and state in ("", ">")
        entry: dict[str, Any] = {
            "record_id": len(entries),
            "pg_id": int(group.name),
            "process_group": [group.name, group.desc],
            "collective_seq_id": counts.collectives,
            "p2p_seq_id": counts.p2p,
            "op_id": counts.ops,
            "profiling_name": f"{item.backend}:{name}",
            "time_created_ns": created_ns,
            "input_sizes": [list(shape) for shape in into],
            "input_dtypes": [item.dtype] * len(into),
            "output_sizes": [list(shape) for shape in out],
            "output_dtypes": [item.dtype] * len(out),
            "state": "scheduled" if is_gloo or not (is_done or has_started) else "completed" if is_done else "started",
            "time_discovered_started_ns": created_ns + 1000 if has_started else 0,
            "time_discovered_completed_ns": created_ns + _DONE_AFTER_NS if is_done and not is_gloo else 0,
            "retired": is_done or state == "!",
            "timeout_ms": 600_000,
            "is_p2p": item.peer >= 0,
        }
        if self.timing and is_done:
            entry["duration_ms"] = 0.25
        if self.release.has_threads:
            entry |= {"thread_id": "140007058968896", "thread_name": "python3"}
        entries.append(entry)


def _call(issue: _Issue, part: Item, before: int, after: int) -> PageCall:
    """The hooks' record of a call, or of a part of a batch."""
    record, group, item, state, line, at_ns = issue
    is_p2p, is_async = part.peer >= 0, item.is_async or (item.is_p2p and bool(item.parts))
    is_open = item.is_open or state == "+"
    number = 0
    if is_p2p:
        way = (group.name, part.peer, part.name == "send")
        record.ways[way] += 1
        number = record.ways[way]
    is_gathered = part.name == "all_gather" and len(part.sizes) > 1
    sizes = part.sizes[group.ranks.index(record.rank) :][:1] if is_gathered else part.sizes
    return PageCall(
        number=len(record.calls) + 1,
        op=f"i{part.name}" if is_p2p and is_async else part.name.removesuffix("_coalesced"),
        group=PageGroup(group.name, group.desc, list(group.ranks), group.backend, 0, 0, 1, False),
        before=before,
        after=after,
        at_ns=at_ns,
        done_ns=0 if is_open or is_async else at_ns + 1,
        frame=Frame("train", SCRIPT, 100 + line),
        peer=part.peer,
        p2p_number=number,
        sizes=[list(shape) for shape in sizes],
        dtype=_DTYPES.get(part.dtype, part.dtype.lower()),
        is_async=is_async,
        has_returned=not is_open,
        has_raised=False,
        is_waited_for=False,
    )


def _counted(group: Group) -> str:
    """The backend whose number torch gives for a group: NCCL's, where it has that."""
    return "nccl" if "nccl" in group.backend else "gloo"
