"""A folder of torch.distributed.checkpoint's: `.metadata`, renamed into place last, and the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from guardrun.supervisor.checkpoints.reading.pickles import BadPickle, Node, TooDeep, TooLong, walk_pickle
from guardrun.supervisor.checkpoints.reading.torch_file import (
    TOO_DEEP,
    TOO_LONG,
    TOO_MANY,
    check_zip,
    open_source,
)
from guardrun.supervisor.checkpoints.reading.torch_zip import BadZip, Span, TooManyError
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole

METADATA = ".metadata"
METADATA_LIMIT_BYTES = 8 << 20
"""A longer one (thousands of ranks) would take seconds to read: then presence is checked, not length."""
MAX_METADATA_BYTES = 1 << 30
"""No save wrote a longer one."""
MAX_NAMES_CHARS = 4 << 20
"""Of files, together: what is told of them is bounded."""
_TOO_MANY = "its .metadata names more files than can be looked into"
_CHUNK_BYTES = 8 << 20
_LONGEST_NAME = 64
_MAX_OFFSET = 1 << 62
_NAME = re.compile(rb"__\d{1,20}_\d{1,20}\.distcp")


class Extent(tuple[str, int, int]):
    """(file relative to the folder, offset, length) of one stored item."""


def parse_extents(data: bytes) -> list[Extent]:
    """List what `.metadata` says is stored where. Raises BadPickle, TooLong."""
    root, _ = walk_pickle(data)
    state = root.state if isinstance(root, Node) else None
    if not isinstance(state, dict) or "state_dict_metadata" not in state:
        raise BadPickle("is not torch.distributed.checkpoint's")
    stored = state.get("storage_data")
    extents: list[Extent] = []
    for info in stored.values() if isinstance(stored, dict) else ():
        fields: Any = info.state if isinstance(info, Node) else None
        if isinstance(fields, dict) and isinstance(fields.get("relative_path"), str):
            offset, length = fields.get("offset"), fields.get("length")
            if isinstance(offset, int) and isinstance(length, int):
                if not (0 <= offset < _MAX_OFFSET and 0 <= length < _MAX_OFFSET):
                    raise BadPickle("has an item out of all bounds")
                extents.append(Extent((fields["relative_path"], offset, length)))
    return extents


class Metadata(NamedTuple):
    """What `.metadata` says, a file."""

    ends: dict[str, int]
    """So many bytes it must have at least."""
    items: dict[str, list[tuple[int, int]]]
    """(offset, length) of what is stored in it; empty where that is too much to be read."""


def read_metadata(source: str | int) -> tuple[Metadata, Verdict]:
    """Read `.metadata`: what it says, or why nobody knows. Raises OSError, MemoryError."""
    with open_source(source) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_METADATA_BYTES:
            return Metadata({}, {}), Unjudged(TOO_LONG)
        try:
            found = _read_items(file.read(size)) if size <= METADATA_LIMIT_BYTES else _read_names(file, size)
        except BadPickle:
            return Metadata({}, {}), Torn("has a damaged .metadata")
        except TooDeep:
            return Metadata({}, {}), Unjudged(TOO_DEEP)
        except TooLong:
            found = _read_names(file, size)
    if sum(map(len, found.ends)) > MAX_NAMES_CHARS:
        return Metadata({}, {}), Unjudged(_TOO_MANY)
    return found, Whole()


def _read_items(data: bytes) -> Metadata:
    """Raises BadPickle, TooLong."""
    ends: dict[str, int] = {}
    items: dict[str, list[tuple[int, int]]] = {}
    for name, offset, length in parse_extents(data):
        ends[name] = max(ends.get(name, 0), offset + length)
        items.setdefault(name, []).append((offset, length))
    return Metadata(ends, items)


def _read_names(file: IO[bytes], size: int) -> Metadata:
    """Only the files' names, by how they look. Raises BadPickle."""
    file.seek(max(0, size - 1))
    if file.read(1) != b".":  # pickle's STOP
        raise BadPickle("ends before its end")
    file.seek(0)
    names: set[bytes] = set()
    before = b""
    while data := file.read(_CHUNK_BYTES):
        names.update(_NAME.findall(before + data))
        before = data[-_LONGEST_NAME:]
    return Metadata({name.decode(): 1 for name in names}, {})


def check_items(source: str | int, items: Sequence[tuple[int, int]]) -> Verdict:
    """Check the CRCs of the items in one file, each of which torch.save wrote. Raises OSError, MemoryError."""
    with open_source(source) as file:
        spans = [Span(file.fileno(), offset, length) for offset, length in items]
        starts = [os.pread(span.fd, 2, span.start) for span in spans]
        if not any(start == b"PK" for start in starts):
            return Whole()  # Another serialisation (safetensors), or compressed.
        for span in spans:
            try:
                check_zip(span)
            except BadZip as error:
                return Torn(str(error))
            except TooManyError:
                return Unjudged(TOO_MANY)
            except TooDeep:
                return Unjudged(TOO_DEEP)
    return Whole()


def check_ends(folder: str, ends: Mapping[str, int], sizes: Mapping[str, int]) -> Verdict:
    """Say whether every file is there, as long as it must be (sizes: bytes per absolute path)."""
    for name, end in sorted(ends.items()):
        size = sizes.get(os.path.join(folder, name))
        if size is None:
            return Torn(f"lacks {name}, which its .metadata names")
        if size < end:
            return Torn(f"has only {size} of {end} bytes of {name}")
    return Whole()
