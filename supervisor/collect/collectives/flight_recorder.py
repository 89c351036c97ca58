"""torch's flight recorder: its dumps, read with doubt.

The JSON is unversioned in practice: keys come and go (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, version
2.10 in torch 2.13). What an entry doesn't say, or says otherwise, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.collect.collectives.worker_server import MAX_BYTES, too_long
from guardrun.supervisor.engine.observation.collective_calls import runs_on_device

MAX_NAME = 400
"""Characters of a group's or an operation's name."""
MAX_ENTRIES = 600
"""The last ones are read: what is pending is among them."""

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""c10/core/ScalarType.h to torch's names; what isn't here is only written small (Float8_e4m3fn, UInt16)."""
_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "allreduce_coalesced": "all_reduce_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_allv": "all_to_all_single",
    "all_reduce_barrier": "barrier",
}
"""Names that backends give their operations to torch's functions; the others are equal."""
_P2P_NAME = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_RANKS = re.compile(r"\[(\d{1,9}(, ?\d{1,9})*)?\]")


class TraceError(Exception):
    """There is nothing to be had from the recorder; says why, for a person."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the recorder."""

    group: str
    desc: str
    backend: str
    op: str
    """torch's function."""
    seq: int
    """The group's collectives so far, this one included."""
    is_p2p: bool
    p2p_seq: int
    peer: int
    """The other side of a send or a receive, as a member of the group; -1 unknown."""
    sizes: list[list[int]]
    dtype: str
    is_done: bool
    is_started: bool = False
    """Its device has begun with it; told only where torch times collectives."""
    created_ns: int
    """Wall clock; 0 unknown."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder has told."""

    entries: list[Entry] = []
    """Oldest first; of each group those since it was made (names are used again)."""
    members: dict[str, list[int]] = {}
    """Global ranks by the group's name, as far as it tells."""
    lost: list[str] = []
    """Backends of whose entries there were more once: the ring has lost them, or they were not read."""
    trouble: str = ""


class _RawCounts(msgspec.Struct):
    """A dump without entries."""

    pg_status: dict[str, dict[str, int]] = {}


class _Raw(msgspec.Struct):
    """The outermost level of a dump; entries stay bytes, since only the last are wanted."""

    entries: list[msgspec.Raw] = []
    pg_config: Any = None
    version: Any = None


_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
_Shape = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]], msgspec.Meta(max_length=64)]
"""torch allows a tensor 64 dimensions."""


class _RawEntry(msgspec.Struct):
    process_group: list[str]
    profiling_name: str
    record_id: _Number = 0
    """Of all that the recorder has had, from 0."""
    collective_seq_id: _Number = -1
    seq_id: _Number = -1
    """Before version 2.2 of the dump."""
    p2p_seq_id: _Number = 0
    is_p2p: bool = False
    input_sizes: list[_Shape] = []
    input_dtypes: list[str] = []
    state: Literal["", "scheduled", "started", "completed"] = ""
    retired: bool = False
    time_created_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


_DECODER = msgspec.json.Decoder(known_type(_Raw))
_ENTRY_DECODER = msgspec.json.Decoder(known_type(_RawEntry))
_COUNTS_DECODER = msgspec.json.Decoder(known_type(_RawCounts), strict=False)
_COUNTED = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def parse_counts(data: bytes) -> dict[str, list[int]]:
    """Read what a dump counts, by torch's number of the group, as observation.device_counts has it.

    Raises ValueError where it can't be read. torch writes the numbers as strings.
    """
    try:
        status = _COUNTS_DECODER.decode(data).pg_status
        return {group: [told[name] for name in _COUNTED] for group, told in status.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError) as error:
        raise ValueError(f"what the flight recorder counts can't be read ({error})") from error


def parse_trace(data: bytes) -> Trace:
    """Read a dump. What can't be read is left out and counted in `trouble`; never raises."""
    if len(data) > MAX_BYTES:
        return Trace(trouble=f"the flight recorder's dump is not read: {too_long(len(data), MAX_BYTES)}")
    try:
        raw = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Trace(trouble=f"the flight recorder's dump can't be read ({error})")
    pairs = []
    unread = 0
    for each in raw.entries[-MAX_ENTRIES:]:
        try:
            entry = _ENTRY_DECODER.decode(each)
            pairs.append((entry, _entry(entry)))
        except (msgspec.MsgspecError, UnicodeError, ValueError):
            unread += 1
    is_cut = len(raw.entries) > MAX_ENTRIES or bool(pairs and pairs[0][0].record_id > 0)
    version = raw.version[:20] if isinstance(raw.version, str) else "none"
    return Trace(
        entries=_since_made(_closed(pairs, is_cut=is_cut)),
        members=_members(raw.pg_config),
        lost=sorted({entry.backend for _, entry in pairs}) if is_cut else [],
        trouble=f"{unread} entries of the flight recorder can't be read (its version: {version})" if unread else "",
    )


def _entry(raw: _RawEntry) -> Entry:
    """Raises ValueError where it doesn't say which collective of which group it is."""
    backend, _, name = raw.profiling_name.rpartition(":")
    seq = raw.collective_seq_id if raw.collective_seq_id >= 0 else raw.seq_id
    if not raw.process_group or seq < 0:
        raise ValueError("no group, or no number")
    p2p = _P2P_NAME.fullmatch(name)
    return Entry(
        group=raw.process_group[0][:MAX_NAME],
        desc=raw.process_group[1][:MAX_NAME] if len(raw.process_group) > 1 else "",
        backend=backend[:MAX_NAME],
        op=p2p[1] if p2p else _OPS.get(name, name[:MAX_NAME]),
        seq=seq,
        is_p2p=raw.is_p2p or p2p is not None,
        p2p_seq=raw.p2p_seq_id,
        peer=int(p2p[3]) if p2p else -1,
        sizes=raw.input_sizes,
        dtype=_dtype(raw.input_dtypes[0][:MAX_NAME]) if raw.input_dtypes else "",
        # Over gloo the state stays "scheduled". A device's backend retires what has timed out, too.
        is_done=raw.state == "completed" or (raw.retired and not runs_on_device(backend)),
        is_started=raw.state == "started",
        created_ns=raw.time_created_ns,
    )


def _closed(pairs: list[tuple[_RawEntry, Entry]], *, is_cut: bool) -> list[Entry]:
    """Batches as their closing entries tell them.

    NCCL's coalesced operations (`batch_isend_irecv`, an uneven all_gather, a coalescing manager's) have no events of
    their own and stay "scheduled" for good; an entry after them, without sizes, tells their state. It is no operation,
    and after sends and receives its number is that of the collective before them (seen on an H100, torch 2.11). Until
    torch 2.7 the parts of coalesced collectives have no entries, so that it stands for them.

    is_cut: there were entries before the first. A closing entry at a group's beginning has lost its parts then.
    """
    kept: list[Entry] = []
    known: set[tuple[str, str]] = set()
    for raw, entry in pairs:
        is_closing = not raw.input_sizes and entry.op.lower().endswith("coalesced")
        batch = _batch(kept, entry) if is_closing else []
        is_lost = is_closing and is_cut and (entry.group, entry.backend) not in known
        known.add((entry.group, entry.backend))
        if not batch and not is_lost:
            kept.append(entry)
        name = entry.op.lower().removesuffix("coalesced").removesuffix("_")
        began_ns = kept[batch[-1]].created_ns if batch else 0
        for index in batch:
            op = kept[index].op if kept[index].is_p2p or not name else _OPS.get(name, name)
            kept[index] = msgspec.structs.replace(
                kept[index], is_done=entry.is_done, is_started=entry.is_started, op=op, created_ns=began_ns
            )
    return kept


def _batch(kept: list[Entry], closing: Entry) -> list[int]:
    """Where in kept those are that a closing entry closes: the last of its group, of one kind and number."""
    found: list[int] = []
    is_p2p = False
    for index in range(len(kept) - 1, -1, -1):
        other = kept[index]
        if (other.group, other.backend) != (closing.group, closing.backend):
            continue
        is_p2p = is_p2p if found else other.is_p2p
        is_of_it = other.p2p_seq == closing.p2p_seq if is_p2p else other.seq == closing.seq
        if other.is_p2p != is_p2p or not is_of_it:
            break
        found.append(index)
    return found


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name.lower())


def _since_made(entries: list[Entry]) -> list[Entry]:
    """Without those of earlier groups of the same name: numbers of one group never fall."""
    kept: dict[str, list[Entry]] = {}
    for entry in entries:
        mine = kept.setdefault(entry.group, [])
        if mine and not entry.is_p2p and entry.seq < max(other.seq for other in mine[-4:]):
            mine.clear()
        mine.append(entry)
    order = {id(entry): index for index, entry in enumerate(entries)}
    return sorted((entry for mine in kept.values() for entry in mine), key=lambda entry: order[id(entry)])


def _members(config: object) -> dict[str, list[int]]:
    """Read pg_config: `{"0": {"name": "0", "desc": …, "ranks": "[0, 1]"}}`; over gloo its names are empty."""
    members = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        ranks = about.get("ranks") if isinstance(about, dict) else None
        if name and isinstance(ranks, str) and _RANKS.fullmatch(ranks):
            members[str(name)[:MAX_NAME]] = [int(rank) for rank in re.findall(r"\d+", ranks)]
    return members


def merge_traces(traces: Iterable[Trace]) -> Trace:
    """Put together what the recorders of several backends have told."""
    traces = list(traces)
    return Trace(
        entries=[entry for trace in traces for entry in trace.entries],
        members={name: ranks for trace in traces for name, ranks in trace.members.items()},
        lost=sorted({backend for trace in traces for backend in trace.lost}),
        trouble="; ".join(dict.fromkeys(trace.trouble for trace in traces if trace.trouble)),
    )
