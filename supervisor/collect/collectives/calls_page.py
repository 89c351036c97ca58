"""Reading a rank's calls page, while its hooks may be writing it: what does not hold together is left out."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from guardrun.hooks.wire import calls_page as page
from guardrun.hooks.wire.board import OPS
from guardrun.hooks.wire.calls_page import Flag, Group, Head, Record
from guardrun.supervisor.engine.model.looks import Frame

_WORDS = struct.Struct(f"<{page.SIZE_BYTES // 8}q")
_MAX_DIM = 1 << 48
_MAX_RANKS = 1 << 20


class PageGroup(NamedTuple):
    """One process group, as it was when it was made, and how far it is."""

    name: str
    desc: str
    ranks: list[int]
    """Global ranks; empty unknown."""
    backend: str
    """As torch has it: `gloo`, `cpu:gloo,cuda:nccl`, …"""
    issued: int
    """Collectives so far at the end of the last call, sends and receives left out; -1 unknown."""
    issued_by_heart: int
    """The same as the hooks' thread has read it, which sees what DDP and FSDP issue: too many while a send or a receive
    is under way."""
    made_ns: int
    is_anew: bool
    """Its entry was another group's before, perhaps one of the same name."""
    timeout_s: float = 0.0
    """That the script itself gave it; 0 none."""


class PageCall(NamedTuple):
    """One call of the training thread."""

    number: int
    """Of all its calls."""
    op: str
    group: PageGroup
    before: int
    """Collectives of the group before it; -1 unknown."""
    after: int
    """And when it had returned; -1 before that, or unknown."""
    at_ns: int
    done_ns: int
    """When it was known to be done; 0 not (yet)."""
    frame: Frame | None
    peer: int
    p2p_number: int
    """0 for a collective."""
    sizes: list[list[int]]
    """Empty where there is none, or not all had room."""
    dtype: str
    is_async: bool
    has_returned: bool
    has_raised: bool
    is_waited_for: bool
    """The rank is waiting for its handle now."""


class CallsPage(NamedTuple):
    """A page, read."""

    pid: int
    groups: list[PageGroup]
    """Those that live."""
    calls: list[PageCall]
    """Oldest first, those of living groups."""
    recorder_fd: int
    recorder_inode: int
    recorder_trouble: str
    """Why there is no worker server; empty also while nobody has tried."""
    entries_trouble: str = ""
    """Why nobody may ask the recorder for entries, ever."""
    pipe: str = ""
    """What the path of torch's own pipe begins with, and that of its dump; empty where there is none."""
    dump: str = ""


def read_calls(path: str) -> CallsPage:
    """Read the page at path. Raises OSError or ValueError where there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.read(fd, page.SIZE_BYTES + 1)
    finally:
        os.close(fd)
    return parse_calls(data)


def parse_calls(data: bytes) -> CallsPage:
    """Read a page's bytes; records and strings that are torn are left out. Raises ValueError where it is no page."""
    if len(data) != page.SIZE_BYTES:
        raise ValueError(f"no calls page: {len(data)} bytes long")
    words = _WORDS.unpack(data)
    if words[Head.MAGIC] != page.MAGIC:
        raise ValueError("no calls page, or one of another version")
    strings = _strings(words, data)
    groups = _groups(words, strings)
    calls = [call for number in _numbers(words) if (call := _call(words, number, groups, strings)) is not None]
    return CallsPage(
        pid=words[Head.PID],
        groups=list(groups.values()),
        calls=calls,
        recorder_fd=words[Head.RECORDER_FD],
        recorder_inode=words[Head.RECORDER_INODE],
        recorder_trouble=_at(strings, words[Head.RECORDER_TROUBLE]),
        entries_trouble=_at(strings, words[Head.ENTRIES_TROUBLE]),
        pipe=_at(strings, words[Head.PIPE]),
        dump=_at(strings, words[Head.DUMP]),
    )


def parse_ranks(text: str) -> list[int]:
    """Read a group's members as callspage.pack_ranks writes them; empty where that is no list of ranks."""
    try:
        if ":" in text:
            first, step, count = (int(part) for part in text.split(":"))
            ranks = [first + step * index for index in range(count)] if 0 <= count <= _MAX_RANKS else []
        else:
            ranks = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        return []
    return ranks if all(rank >= 0 for rank in ranks) else []


def _strings(words: tuple[int, ...], data: bytes) -> list[str]:
    strings = []
    for index in range(max(0, min(words[Head.STRINGS], page.MAX_STRINGS))):
        offset, length = words[page.STRINGS_AT + index] >> 32, words[page.STRINGS_AT + index] & 0xFFFFFFFF
        is_inside = offset >= 0 and offset + length <= page.MAX_TEXT_BYTES
        start = page.TEXT_AT + offset
        strings.append(data[start : start + length].decode("utf-8", "replace") if is_inside else "")
    return strings


def _at(strings: list[str], index: int) -> str:
    return strings[index] if 0 <= index < len(strings) else ""


def _groups(words: tuple[int, ...], strings: list[str]) -> dict[int, PageGroup]:
    """Living groups by what records name them by."""
    groups = {}
    for index in range(max(0, min(words[Head.GROUPS], page.MAX_GROUPS))):
        at = page.GROUPS_AT + index * page.GROUP_WORDS
        state = words[at + Group.STATE]
        if not state & 1:
            continue
        p2p = words[at + Group.SEQ_P2P]
        groups[index | state >> 1 << page.GROUP_BITS] = PageGroup(
            name=_at(strings, words[at + Group.NAME]),
            desc=_at(strings, words[at + Group.DESC]),
            ranks=parse_ranks(_at(strings, words[at + Group.RANKS])),
            backend=_at(strings, words[at + Group.BACKEND]),
            issued=max(-1, words[at + Group.SEQ_CALL] - p2p),
            issued_by_heart=max(-1, words[at + Group.SEQ_HEART] - p2p),
            made_ns=words[at + Group.MADE_NS],
            is_anew=state >> 1 > 1,
            timeout_s=max(0, words[at + Group.TIMEOUT_NS]) / 1e9,
        )
    return groups


def _numbers(words: tuple[int, ...]) -> range:
    """Numbers of the records that may be in the ring."""
    count = max(0, words[Head.RECORDS])
    return range(max(1, count - page.MAX_RECORDS + 1), count + 1)


def _call(words: tuple[int, ...], number: int, groups: dict[int, PageGroup], strings: list[str]) -> PageCall | None:
    at = page.RECORDS_AT + (number - 1) % page.MAX_RECORDS * page.RECORD_WORDS
    record = words[at : at + page.RECORD_WORDS]
    flags, place = record[Record.FLAGS], record[Record.PLACE]
    group = groups.get(record[Record.GROUP])
    if record[Record.HEAD] != number or record[Record.TAIL] != number or group is None:
        return None
    op = flags & 0xFF
    file, function, line = _at(strings, place >> 48), _at(strings, place >> 32 & 0xFFFF), place & 0xFFFFFFFF
    return PageCall(
        number=number,
        op=OPS[op] if op < len(OPS) else "collective",
        group=group,
        before=record[Record.SEQ_BEFORE],
        after=record[Record.SEQ_AFTER],
        at_ns=record[Record.AT_NS],
        done_ns=record[Record.DONE_NS],
        frame=Frame(function, file, line) if file else None,
        peer=record[Record.PEER],
        p2p_number=record[Record.P2P_NUMBER] if flags & Flag.P2P else 0,
        sizes=[] if flags & Flag.CUT else _sizes(record[Record.DIMS : Record.TAIL]),
        dtype=_at(strings, record[Record.DTYPE]),
        is_async=bool(flags & Flag.ASYNC),
        has_returned=bool(flags & Flag.RETURNED),
        has_raised=bool(flags & Flag.RAISED),
        is_waited_for=words[Head.WAITING] == number,
    )


def _sizes(dims: tuple[int, ...]) -> list[list[int]]:
    """Shapes, each with its number of dimensions and one more in front."""
    sizes = []
    index = 0
    while index < len(dims) and 0 < dims[index] <= len(dims) - index:
        size = list(dims[index + 1 : index + dims[index]])
        if not all(0 <= dim < _MAX_DIM for dim in size):
            return []
        sizes.append(size)
        index += 1 + len(size)
    return sizes
