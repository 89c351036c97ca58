"""The zip archive that torch.save writes, read strictly: where torch's own reader would stumble, this one does.

torch writes every record uncompressed, behind a local header padded to an alignment, then a central directory, a zip64
end record with its locator, and the end record (22 bytes, no comment) at the very end of the file. So a file cut
anywhere has no end record. Layout: PKWARE's APPNOTE.TXT 4.3; what torch uses of it:
caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

_END = struct.Struct("<IHHHHIIH")
_END_SIGNATURE = 0x06054B50
_LOCATOR = struct.Struct("<IIQI")
_LOCATOR_SIGNATURE = 0x07064B50
_END64 = struct.Struct("<IQHHIIQQQQ")
_END64_SIGNATURE = 0x06064B50
_ENTRY = struct.Struct("<IHHHHHHIIIHHHHHII")
_ENTRY_SIGNATURE = 0x02014B50
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_LOCAL_SIGNATURE = 0x04034B50
_UNSAID_16 = 0xFFFF
_UNSAID_32 = 0xFFFFFFFF
_ENCRYPTED = 0x1 | 0x20 | 0x40 | 0x2000
_FOLDER = 0x10
"""In the external attributes: torch's reader then gives back memory that it never filled."""
_CHUNK_BYTES = 1 << 20
MAX_DIRECTORY_BYTES = 64 << 20
"""Half a million records: some seconds of work. A file can say anything (and be sparse)."""


class BadZip(ValueError):
    """The reason that the archive is torn."""


class OtherFormatError(BadZip):
    """Whole for all that is known here, but none of torch.save's."""


class TooManyError(Exception):
    """The archive's directory is larger than any that is read here."""


class Span(NamedTuple):
    """Part of an open file."""

    fd: int
    start: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly size bytes. Raises BadZip where the span ends before, OSError."""
        if offset < 0 or offset + size > self.size:
            raise BadZip("points beyond its own end")
        data = os.pread(self.fd, size, self.start + offset)
        if len(data) != size:
            raise BadZip("became shorter while it was read")
        return data


class Record(NamedTuple):
    """One record of the archive."""

    name: str
    """Without the archive's own folder: `data.pkl`, `data/0`."""
    crc: int
    size: int
    offset: int
    """Of its bytes."""


class _Directory(NamedTuple):
    offset: int
    size: int
    entries: int


def _find_directory(span: Span) -> _Directory:
    if span.size < _END.size:
        raise BadZip("ends too early: no zip directory at its end")
    end_offset = span.size - _END.size
    signature, disk, first_disk, here, count, size, offset, comment = _END.unpack(span.read(end_offset, _END.size))
    if signature != _END_SIGNATURE or comment:
        raise BadZip("ends too early: no zip directory at its end")
    if disk or first_disk or here != count:
        raise BadZip("has a damaged zip directory (end record)")
    locator_offset = end_offset - _LOCATOR.size
    if locator_offset >= 0:
        found, located_disk, end64_offset, disks = _LOCATOR.unpack(span.read(locator_offset, _LOCATOR.size))
        if found == _LOCATOR_SIGNATURE:
            if located_disk or disks != 1:
                raise BadZip("has a damaged zip directory (zip64 locator)")
            return _find_directory64(span, end64_offset, locator_offset, (count, size, offset))
    if offset + size != end_offset or _UNSAID_32 in (size, offset) or count == _UNSAID_16:
        raise BadZip("has a damaged zip directory (end record)")
    return _Directory(offset, size, count)


def _find_directory64(span: Span, at: int, locator_offset: int, said: tuple[int, int, int]) -> _Directory:
    signature, length, _, _, disk, first_disk, here, count, size, offset = _END64.unpack(span.read(at, _END64.size))
    if signature != _END64_SIGNATURE or at + 12 + length != locator_offset or disk or first_disk or here != count:
        raise BadZip("has a damaged zip directory (zip64 end record)")
    for short, full, unsaid in zip(said, (count, size, offset), (_UNSAID_16, _UNSAID_32, _UNSAID_32), strict=True):
        if short not in (full, unsaid):
            raise BadZip("has a damaged zip directory (its end records differ)")
    if offset + size != at:
        raise BadZip("has a damaged zip directory (zip64 end record)")
    return _Directory(offset, size, count)


def _read_zip64_field(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """Fill in what an entry leaves to its zip64 extra field (APPNOTE 4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        field = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind != 1:
            continue
        values = list(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
        wanted = [value == _UNSAID_32 for value in (size, packed, offset)]
        if sum(wanted) > len(values):
            raise BadZip("has a damaged zip directory (zip64 field)")
        size, packed, offset = (
            values.pop(0) if is_wanted else value
            for is_wanted, value in zip(wanted, (size, packed, offset), strict=True)
        )
    return size, packed, offset


def _locate(span: Span, name: bytes, flags: int, header_offset: int) -> int:
    """Find a record's bytes behind its local header, which must agree with the directory."""
    header = span.read(header_offset, _LOCAL.size + len(name))
    signature, _, local_flags, method, _, _, _, _, _, name_length, extra_length = _LOCAL.unpack(header[: _LOCAL.size])
    if signature != _LOCAL_SIGNATURE or method or local_flags != flags:
        raise BadZip("has a damaged record header")
    if name_length != len(name) or header[_LOCAL.size :] != name:
        raise BadZip("has a record whose header names another")
    return int(header_offset + _LOCAL.size + name_length + extra_length)


def read_records(span: Span) -> dict[str, Record]:
    """Read the archive's directory and every local header. Raises BadZip, TooManyError, OSError."""
    directory = _find_directory(span)
    if directory.size > MAX_DIRECTORY_BYTES:
        raise TooManyError
    data = span.read(directory.offset, directory.size)
    records: dict[str, Record] = {}
    headers, ends = array("Q"), array("Q")
    at = 0
    for _ in range(directory.entries):
        if at + _ENTRY.size > len(data):
            raise BadZip("has a zip directory shorter than it says")
        fields = _ENTRY.unpack_from(data, at)
        signature, flags, method, crc = fields[0], fields[3], fields[4], fields[7]
        name_length, extra_length, comment_length, disk = fields[10:14]
        is_folder = fields[15] & _FOLDER
        end = at + _ENTRY.size + name_length + extra_length + comment_length
        if (
            signature != _ENTRY_SIGNATURE
            or flags & _ENCRYPTED
            or is_folder
            or comment_length
            or disk
            or end > len(data)
        ):
            raise BadZip("has a damaged zip directory (entry)")
        if method:
            raise OtherFormatError("holds compressed records, which torch.save's archives never do")
        raw = data[at + _ENTRY.size : at + _ENTRY.size + name_length]
        extra = data[at + _ENTRY.size + name_length : end]
        size, packed, header_offset = _read_zip64_field(extra, fields[9], fields[8], fields[16])
        offset = _locate(span, raw, flags, header_offset)
        if size != packed or offset + size > directory.offset:
            raise BadZip("has a record that reaches beyond its place")
        headers.append(header_offset)
        ends.append(offset + size)
        name = raw.decode("utf-8", "replace").partition("/")[2]
        records[name] = Record(name, crc, size, offset)
        at = end
    if at != len(data) or len(records) != directory.entries:
        raise BadZip("has a zip directory that does not add up")
    _check_order(headers, ends)
    return records


def _check_order(headers: Sequence[int], ends: Sequence[int]) -> None:
    end = 0
    # In the order of the file, as torch writes the directory, there is nothing to sort.
    for at in sorted(range(len(headers)), key=headers.__getitem__):
        if headers[at] < end:
            raise BadZip("has records that overlap")
        end = ends[at]


def has_checksums(records: dict[str, Record]) -> bool:
    """Say whether torch computed CRCs: `torch.serialization.set_crc32_options(False)` leaves all of them 0."""
    return any(record.crc for record in records.values())


def check_crc(span: Span, record: Record) -> None:
    """Compare a record's bytes with its CRC. Raises BadZip, OSError."""
    crc = 0
    for at in range(0, record.size, _CHUNK_BYTES):
        crc = zlib.crc32(span.read(record.offset + at, min(_CHUNK_BYTES, record.size - at)), crc)
    if crc != record.crc:
        raise BadZip(f"has a damaged record ({record.name}: its checksum is wrong)")
